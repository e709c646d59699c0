// Package plan says which steps a run has, in which order, and how long they should take.
package plan

import (
	"fmt"
	"regexp"

	"github.com/postrider/postrider/bench/outbox"
	"github.com/postrider/postrider/bench/result"
)

// Step is one measurement of one contender.
type Step struct {
	Name      string
	Kind      result.Kind
	Contender string
	Round     int
	Params    result.Params
	// Backlog is the table that a drain reads; "" for steps that write as they go.
	Backlog string
	// Group is shared by steps that are measured at the same time; "" for none.
	Group string
	// Estimate is how long the step takes, in seconds, with everything around it.
	Estimate float64
}

// Plan is a run.
type Plan struct {
	Steps    []Step
	Backlogs map[string]outbox.Spec
}

// Options choose a run.
type Options struct {
	Quick bool
	// Rounds is 0 for the usual number.
	Rounds int
	// Only, if not nil, has to match a step's name.
	Only *regexp.Regexp
	// Done are steps that have a result already.
	Done func(name string) bool
}

// Selected is a run without the steps that Options leave out; its backlogs are as large as the remaining steps need.
func Selected(opts Options) Plan {
	all := everything(opts)
	p := Plan{Backlogs: map[string]outbox.Spec{}}
	for _, s := range all.Steps {
		if opts.Only != nil && !opts.Only.MatchString(s.Name) || opts.Done != nil && opts.Done(s.Name) {
			continue
		}
		p.Steps = append(p.Steps, s)
		if s.Backlog != "" {
			p.need(all.Backlogs[s.Backlog], s.Params.Rows)
		}
	}
	return p
}

// need adds a tail to a backlog.
func (p *Plan) need(spec outbox.Spec, tail int) {
	have, ok := p.Backlogs[spec.Table]
	if !ok {
		have = spec
		have.Tails = nil
	}
	for _, t := range have.Tails {
		if t == tail {
			return
		}
	}
	have.Tails = append(have.Tails, tail)
	p.Backlogs[spec.Table] = have
}

// Estimate is the time of all steps, in seconds, and of what comes before them.
func (p Plan) Estimate() float64 {
	sum := StartEstimate
	for _, b := range p.Backlogs {
		sum += LoadEstimate(b)
	}
	for _, s := range p.Steps {
		sum += s.Estimate
	}
	return sum
}

// StartEstimate is for the servers, and programs that are built already, in seconds.
const StartEstimate = 15.0

// LoadEstimate is for a backlog, in seconds: transactions and bytes cost.
func LoadEstimate(b outbox.Spec) float64 {
	rows := 0
	for _, tail := range b.Tails {
		rows = max(rows, tail)
	}
	transactions := float64(rows) / float64(max(1, b.RowsPerTxn))
	return 1 + float64(rows)*4e-6 + transactions*12e-6 + float64(rows*b.Payload)*4e-8
}

// Names of the backlogs' tables.
const (
	mainTable = "outbox"
	hugeTable = "outbox_huge"
)

// everything is the whole run: what other work would disturb first, what takes its time last.
func everything(opts Options) Plan {
	s := full
	if opts.Quick {
		s = quick
	}
	if opts.Rounds > 0 {
		s.rounds = opts.Rounds
	}
	p := Plan{Backlogs: map[string]outbox.Spec{
		mainTable: {Table: mainTable, Payload: s.base.PayloadBytes, RowsPerTxn: s.base.RowsPerTxn},
		hugeTable: {Table: hugeTable, Payload: s.huge.PayloadBytes, RowsPerTxn: s.huge.RowsPerTxn, OneTxn: true},
	}}
	p.drains(s)
	p.latencies(s)
	p.scales(s)
	p.idles(s)
	p.outages(s)
	p.huges(s)
	return p
}

func (p *Plan) drains(s sizes) {
	for round := 1; round <= s.rounds; round++ {
		for _, c := range drainOrder {
			params := s.base
			if n, ok := s.fewer[c]; ok {
				params.Rows = n
			}
			p.add(Step{
				Name: fmt.Sprintf("drain/%d/%s", round, c), Kind: result.KindDrain, Contender: c, Round: round, Params: params,
				Backlog: mainTable, Estimate: overhead(c) + float64(params.Rows)/speeds[c],
			})
		}
	}
}

func (p *Plan) latencies(s sizes) {
	for round := 1; round <= s.rounds; round++ {
		for _, r := range s.rates {
			for _, c := range latencyOrder {
				if limit, ok := limits[c]; ok && r.perSec > limit {
					continue
				}
				params := result.Params{Partitions: s.base.Partitions, PayloadBytes: s.base.PayloadBytes, RowsPerTxn: 1, RatePerSec: r.perSec, Seconds: r.seconds}
				p.add(Step{
					Name: fmt.Sprintf("latency/%g/%d/%s", r.perSec, round, c), Kind: result.KindLatency, Contender: c, Round: round, Params: params,
					Estimate: overhead(c) + WarmUp + r.seconds + 1,
				})
			}
		}
	}
}

// WarmUp is for how many seconds events are written before the ones that count.
const WarmUp = 2.0

func (p *Plan) scales(s sizes) {
	for round := 1; round <= s.rounds; round++ {
		for _, x := range s.scale {
			params := x.params(s.base)
			table := mainTable
			if params.PayloadBytes != s.base.PayloadBytes || params.RowsPerTxn != s.base.RowsPerTxn {
				table = fmt.Sprintf("outbox_%s_%d", x.axis, x.value)
				p.Backlogs[table] = outbox.Spec{Table: table, Payload: params.PayloadBytes, RowsPerTxn: params.RowsPerTxn}
			}
			megabytes := float64(params.Rows*params.PayloadBytes) / 1e6
			p.add(Step{
				Name: fmt.Sprintf("scale/%s-%d/%d/postrider", x.axis, x.value, round), Kind: result.KindScale, Contender: "postrider", Round: round, Params: params,
				Backlog: table, Estimate: overhead("postrider") + float64(params.Rows)/speeds["postrider"] + megabytes/50,
			})
		}
	}
}

// idles measures Postrider alone, and the others at the same time: idle as they are, they leave each other room.
func (p *Plan) idles(s sizes) {
	for i, c := range latencyOrder {
		seconds, group := s.idlePeers, "idle-peers"
		if c == "postrider" {
			seconds, group = s.idle, ""
		}
		if seconds == 0 {
			continue
		}
		estimate := overhead(c) + 2
		if group == "" || i == len(latencyOrder)-1 {
			estimate += seconds // the group waits once
		}
		params := result.Params{Partitions: s.base.Partitions, Seconds: seconds}
		p.add(Step{Name: "idle/1/" + c, Kind: result.KindIdle, Contender: c, Round: 1, Params: params, Group: group, Estimate: estimate})
	}
}

func (p *Plan) outages(s sizes) {
	params := s.base
	params.Rows, params.RatePerSec, params.Seconds = 0, s.outageRate, s.outage
	p.add(Step{
		Name: "outage/1/postrider", Kind: result.KindOutage, Contender: "postrider", Round: 1, Params: params,
		Estimate: overhead("postrider") + WarmUp + s.outage + 5 + s.outage*s.outageRate/speeds["postrider"],
	})
}

func (p *Plan) huges(s sizes) {
	p.add(Step{
		Name: "hugetxn/1/postrider", Kind: result.KindHugeTxn, Contender: "postrider", Round: 1, Params: s.huge, Backlog: hugeTable,
		Estimate: overhead("postrider") + float64(s.huge.Rows)*25e-6,
	})
}

func (p *Plan) add(s Step) { p.Steps = append(p.Steps, s) }
