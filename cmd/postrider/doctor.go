package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/doctor"
	"github.com/postrider/postrider/internal/operr"
)

type doctorOptions struct {
	configFlag
	out     io.Writer
	only    []string
	longest time.Duration
	timeout time.Duration
	strict  bool
	ascii   bool
	json    bool
}

func newDoctorCommand(a *app) *cobra.Command {
	opts := doctorOptions{out: a.out}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check every precondition and name the fix of each that does not hold",
		Long: "Asks each precondition of a run as a question of its own: of PostgreSQL, of the slot and the stored position, of the\n" +
			"brokers and the topics. It reads only, works whether or not a relay runs, and ends within seconds. What cannot be\n" +
			"asked is named as not checked, with the reason; a server that is down hides nothing of the others.\n\n" +
			"Exit code 0: every precondition holds, warnings aside (with --strict, without them); 8: one does not, or could not\n" +
			"be asked. With --json it prints a list of objects with name, state (ok, warning, failed, not_checked), finding, fix.\n\n" +
			"Rights on topics are asked of the brokers' authorizer; nothing is published. It cannot know what a proxy or a quota\n" +
			"adds. Topics whose names come from rows, and the size of messages, go by a sample of the tables' rows.\n\n" + doctorChecks(),
		Example: "  postrider doctor\n  postrider doctor --only 'kafka*' --only topics --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.Validate(); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context())
		},
	}
	opts.add(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&opts.only, "only", nil, "make only the checks whose name matches this `pattern` (*, ?); may be repeated")
	flags.DurationVar(&opts.longest, "longest-outage", doctor.DefaultLongestOutage, "the outage that slot and topics have to survive")
	flags.DurationVar(&opts.timeout, "timeout", doctor.DefaultTimeout, "how long to wait for the answer to each question")
	flags.BoolVar(&opts.strict, "strict", false, "warnings give exit code 8, too")
	flags.BoolVar(&opts.ascii, "ascii", false, "marks of letters instead of signs, as where the terminal is not UTF-8")
	addJSON(cmd, &opts.json)
	return cmd
}

// doctorChecks lists the checks for the help.
func doctorChecks() string {
	var b strings.Builder
	b.WriteString("Checks:\n\n")
	names, questions := doctor.Checks()
	for i, name := range names {
		fmt.Fprintf(&b, "  %-29s  %s\n", name, questions[i])
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Validate checks the flags before anything is read or connected to.
func (o *doctorOptions) Validate() error {
	var problems []error
	if err := doctor.ValidateOnly(o.only); err != nil {
		problems = append(problems, fmt.Errorf("--only: %w", err))
	}
	if o.longest < time.Minute || o.longest > 10*365*24*time.Hour {
		problems = append(problems, fmt.Errorf("--longest-outage is %s; must be from 1m to ten years", o.longest))
	}
	if o.timeout < 100*time.Millisecond || o.timeout > time.Minute {
		problems = append(problems, fmt.Errorf("--timeout is %s; must be from 100ms to 1m", o.timeout))
	}
	return errors.Join(problems...)
}

func (o *doctorOptions) run(ctx context.Context) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	ctx, stop := untilInterrupted(ctx)
	defer stop()
	printer := &doctorPrinter{out: o.out, ascii: o.ascii || !utf8Locale(os.Getenv)}
	var tell func(doctor.Finding)
	if !o.json {
		tell = printer.tell
	}
	report, err := doctor.Run(ctx, o.doctorConfig(cfg), tell)
	if err != nil {
		return &operr.Error{Class: operr.DrainIncomplete, Op: "doctor", Err: fmt.Errorf("interrupted after %d findings: %w", len(report.Findings), err), Hint: "postrider doctor --only NAME asks less"}
	}
	if o.json {
		findings := report.Findings
		if findings == nil {
			findings = []doctor.Finding{}
		}
		return errors.Join(o.verdict(report), writeJSON(o.out, findings))
	}
	printer.summary(report)
	return o.verdict(report)
}

func (o *doctorOptions) doctorConfig(cfg *config.Config) doctor.Config {
	return doctor.Config{
		Publisher:     cfg.Publisher.Name,
		Replication:   cfg.ReplicationConfig(),
		Router:        cfg.Router(),
		Kafka:         cfg.PublisherConfig(),
		Only:          o.only,
		LongestOutage: o.longest,
		Timeout:       o.timeout,
	}
}

// verdict turns a report into the exit code.
func (o *doctorOptions) verdict(r doctor.Report) error {
	var parts []string
	add := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(r.Failed, "failed")
	add(r.Unanswered, "could not be checked")
	if o.strict {
		add(r.Warnings, "warnings")
	}
	if len(parts) == 0 {
		return nil
	}
	return &operr.Error{Class: operr.Findings, Op: "doctor", Err: errors.New(strings.Join(parts, ", "))}
}
