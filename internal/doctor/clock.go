package doctor

import (
	"context"
	"errors"
	"time"
)

const (
	// skewSaid is more than time servers leave between machines.
	skewSaid = 5 * time.Second
	// skewRefused is what Kafka 4 lets a record be ahead of it by default (rule 19).
	skewRefused = time.Hour
)

// readClock is how far the database's clock is ahead of this machine's, give or take half
// the time that the question took.
func (e *exam) readClock(ctx context.Context) (ahead time.Duration, err error) {
	var there time.Time
	before := e.cfg.Now()
	if err := e.row(ctx, `SELECT clock_timestamp()`, nil, &there); err != nil {
		return 0, err
	}
	return aheadOf(there, before, e.cfg.Now()), nil
}

// aheadOf takes the middle of the question for the moment of the answer. A difference
// within the time that the question took is none.
func aheadOf(there, before, after time.Time) time.Duration {
	half := after.Sub(before) / 2
	ahead := there.Sub(before.Add(half))
	if ahead.Abs() <= half {
		return 0
	}
	return ahead
}

func checkClock(ctx context.Context, e *exam) []answer {
	ahead, err := e.readClock(ctx)
	if err != nil {
		return unanswered(err)
	}
	const fix = "run a time service (chrony, systemd-timesyncd) on both machines"
	switch text := skewText("the database's clock", "this machine's", ahead); {
	case ahead.Abs() >= skewRefused:
		return fail(fix, "%s: --since and --until, ages and alarms go by the wrong time", text)
	case ahead.Abs() >= skewSaid:
		return warn(fix, "%s: ages and alarms are off by as much", text)
	default:
		return ok("%s", text)
	}
}

func skewText(one, other string, ahead time.Duration) string {
	rounded := ahead.Abs().Round(time.Millisecond)
	if rounded > 10*time.Second {
		rounded = rounded.Round(time.Second)
	}
	switch {
	case rounded < time.Second:
		return one + " and " + other + " agree"
	case ahead > 0:
		return one + " is " + rounded.String() + " ahead of " + other
	default:
		return one + " is " + rounded.String() + " behind " + other
	}
}

// checkKafkaClock compares the brokers' clock with the database's, which stamps events
// unless a column does: what is too far ahead is refused (rule 19).
func checkKafkaClock(ctx context.Context, e *exam) []answer {
	before := e.cfg.Now()
	msg, err := e.kafka.ask(ctx, &describeQuorum{})
	if dependency := (*dependencyError)(nil); errors.As(err, &dependency) {
		return unanswered(err)
	}
	if err != nil {
		return skip("the brokers do not tell their time (DescribeQuorum, which DESCRIBE on the cluster allows since Kafka 3.3: %s)", oneLine(err.Error()))
	}
	brokers := aheadOf(msg.(*quorum).clock, before, e.cfg.Now())
	found, err := e.stampedAhead(ctx, brokers)
	if err != nil {
		return noTopics(err)
	}
	database, err := e.readClock(ctx)
	if err != nil {
		return unanswered(err)
	}
	ahead := database - brokers
	const fix = "run a time service (chrony, systemd-timesyncd) on the brokers and on the database's machine"
	switch text := skewText("the database's clock", "the brokers'", ahead); {
	case ahead >= skewRefused:
		return append(fail(fix, "%s: Kafka refuses what is stamped too far ahead of it", text), found...)
	case ahead.Abs() >= skewSaid:
		return append(warn(fix, "%s", text), found...)
	default:
		return orOK(found, "%s", text)
	}
}

// stampedAhead looks for rows whose own timestamp a topic would refuse.
func (e *exam) stampedAhead(ctx context.Context, brokers time.Duration) ([]answer, error) {
	topics, err := e.topics(ctx)
	if errors.Is(err, errNoTopics) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s, err := e.readSample(ctx)
	if err != nil {
		return nil, nil //nolint:nilerr // mapping says why no rows could be looked at
	}
	now := e.cfg.Now().Add(brokers)
	return each(topics, func(t *topic) []answer {
		after, known := t.config(cfgStampAfter)
		if !known || s.topics[t.name] == nil || t.configs[cfgStampType] == "LogAppendTime" {
			return nil
		}
		if ahead := s.topics[t.name].latest.Sub(now); after < int64(ahead/time.Millisecond) {
			return fail("correct the column of mapping.timestamp (its unit?), or leave the mapping out: the commit's time is taken then",
				"topic %s takes records up to %s ahead of the broker (message.timestamp.after.max.ms), and a row that was looked at is stamped %s ahead", t.name, words(time.Duration(after)*time.Millisecond), words(ahead.Round(time.Minute)))
		}
		return nil
	}), nil
}
