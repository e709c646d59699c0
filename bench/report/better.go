package report

import (
	"fmt"

	"github.com/postrider/postrider/bench/result"
)

// contest is what contenders can be compared in: metrics of the steps that pass the filters.
type contest struct {
	where   string
	filters []filter
	metrics []metric
}

// contests are all that a run measured of more than Postrider alone.
func (v view) contests() []contest {
	out := []contest{{"Drain", []filter{kind(result.KindDrain)}, []metric{speed, cpu, serverCPU, brokerCPU, peakRSS, startup}}}
	for _, perSec := range v.rates() {
		out = append(out, contest{
			fmt.Sprintf("Commit → consumer at %s/s", figure(perSec)),
			[]filter{kind(result.KindLatency), rate(perSec)},
			[]metric{p50, p95, p99, p999, pMax, cpu, serverCPU, peakRSS},
		})
	}
	for _, a := range axes {
		for _, p := range v.axis(a.name, postrider) {
			same := func(r result.Result) bool {
				return r.Kind == result.KindScale && r.Params.Axis == a.name && a.x(r.Params) == p.x
			}
			out = append(out, contest{
				fmt.Sprintf("Scaling, %s %s", a.name, a.label(p.x)), []filter{same}, []metric{speed, cpu, serverCPU, peakRSS},
			})
		}
	}
	return append(
		out,
		contest{"Idle", []filter{kind(result.KindIdle)}, []metric{idleCPU, peakRSS}},
		contest{"Broker outage", []filter{kind(result.KindOutage)}, []metric{peakRSS, cpu}},
		contest{"One huge transaction", []filter{kind(result.KindHugeTxn)}, []metric{elapsed, cpu, serverCPU, peakRSS}},
	)
}

// beaten lists, in plain words, every metric in which one of the rivals beats Postrider.
func (v view) beaten(rival func(contender string) bool) []string {
	var out []string
	for _, c := range v.contests() {
		steps := v.counted(c.filters...)
		for _, contender := range contenders(steps) {
			if ours(contender) || !rival(contender) {
				continue
			}
			for _, m := range c.metrics {
				mine, theirs := m.over(only(steps, postrider)), m.over(only(steps, contender))
				if s := lost(m, mine, theirs); s != "" {
					out = append(out, fmt.Sprintf("**%s**, %s: %s %s.", c.where, m.name, nameOf(contender), s))
				}
			}
		}
	}
	return out
}

// lost says by how much the other is better, or nothing where it is not.
func lost(m metric, mine, theirs spread) string {
	if mine.n == 0 || theirs.n == 0 || m.more && theirs.median <= mine.median || !m.more && theirs.median >= mine.median {
		return ""
	}
	s := fmt.Sprintf("%s, Postrider %s", theirs.text(m.format), mine.text(m.format))
	if theirs.lo <= mine.hi && mine.lo <= theirs.hi && mine.n > 1 && theirs.n > 1 {
		s += " (the rounds of the two overlap)"
	}
	return s
}

func peer(contender string) bool { return !reference(contender) }

func betterSection(v view, p *markdown) {
	p.line("## Where a peer is better")
	if lost := v.beaten(peer); len(lost) > 0 {
		p.line("Every metric of this run in which the median of a peer beats that of Postrider with its defaults:")
		p.list(lost)
	} else {
		p.line("None: in no metric of this run does the median of a peer beat that of Postrider.")
	}
	if lost := v.beaten(reference); len(lost) > 0 {
		p.line("`pg_recvlogical` and the decoding alone publish nothing and confirm nothing: they show what is possible, and are no " +
			"peers. They are ahead in:")
		p.list(lost)
	}
}
