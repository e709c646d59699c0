package doctor

import (
	"context"
	"fmt"
	"path"
	"time"

	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

// State is what came of a check. The values are a documented contract.
type State string

// The states of a finding.
const (
	OK         State = "ok"
	Warning    State = "warning"
	Failed     State = "failed"
	NotChecked State = "not_checked"
)

// Finding is one line of a report. Its JSON fields are a documented contract.
type Finding struct {
	// Name is the check's; a check has several findings where several things are wrong.
	Name  string `json:"name"`
	State State  `json:"state"`
	// Finding is a sentence without its full stop.
	Finding string `json:"finding"`
	// Fix is what to do, "" where there is nothing.
	Fix string `json:"fix"`
}

// Report is what a run found.
type Report struct {
	Findings []Finding
	// Failed and Warnings count findings. Unanswered counts those that were not checked
	// although they matter here: the question failed, or what it needs does not serve.
	Failed, Warnings, Unanswered int
}

// Config says what is examined. Zero durations take the documented defaults.
type Config struct {
	// Publisher is the name of the checkpoint row.
	Publisher   string
	Replication replication.Config
	Router      router.Config
	Kafka       publisher.Config
	// Only are patterns of path.Match over the names of checks; empty is all.
	Only []string
	// LongestOutage is what topics must keep events for, so that a consumer, and
	// recover's comparison of table and topic, find them after it. Default 72 h.
	LongestOutage time.Duration
	// Timeout bounds each question; a check may have several. Default 5 s.
	Timeout time.Duration
	// Now is this machine's clock. Default time.Now.
	Now func() time.Time
}

func (c Config) withDefaults() Config {
	if c.LongestOutage <= 0 {
		c.LongestOutage = DefaultLongestOutage
	}
	if c.Timeout <= 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Defaults of Config: a long weekend, and what a server that serves stays far below.
const (
	DefaultLongestOutage = 72 * time.Hour
	DefaultTimeout       = 5 * time.Second
)

// ValidateOnly says which pattern matches no check.
func ValidateOnly(patterns []string) error {
	for _, pattern := range patterns {
		found := false
		for _, c := range checks {
			matches, err := path.Match(pattern, c.name)
			if err != nil {
				return fmt.Errorf("%q is not a pattern: %w", pattern, err)
			}
			found = found || matches
		}
		if !found {
			return fmt.Errorf("no check is named %q", pattern)
		}
	}
	return nil
}

// Checks gives the name of each check and what it asks, in the order of a report.
func Checks() (names, questions []string) {
	for _, c := range checks {
		names, questions = append(names, c.name), append(questions, c.asks)
	}
	return names, questions
}

func chosen(patterns []string, name string) bool {
	if len(patterns) == 0 {
		return true
	}
	for _, pattern := range patterns {
		if matches, err := path.Match(pattern, name); err == nil && matches {
			return true
		}
	}
	return false
}

// Run makes the checks and tells each finding as soon as it is known; tell may be nil.
// It ends with ctx, whose error it then gives; a precondition that does not hold is no
// error of Run.
func Run(ctx context.Context, cfg Config, tell func(Finding)) (Report, error) {
	e := newExam(cfg.withDefaults())
	defer e.close()
	ctx, stop := context.WithCancel(ctx)
	defer stop() // before close, which waits for dials
	e.kafka.start(ctx)
	var report Report
	for _, c := range checks {
		if !chosen(cfg.Only, c.name) {
			continue
		}
		for _, a := range e.make(ctx, c) {
			if err := ctx.Err(); err != nil {
				return report, err
			}
			report.add(c.name, a)
			if tell != nil {
				tell(report.Findings[len(report.Findings)-1])
			}
		}
	}
	return report, nil
}

func (r *Report) add(name string, a answer) {
	r.Findings = append(r.Findings, Finding{Name: name, State: a.state, Finding: a.text, Fix: a.fix})
	switch {
	case a.state == Failed:
		r.Failed++
	case a.state == Warning:
		r.Warnings++
	case a.unanswered:
		r.Unanswered++
	}
}
