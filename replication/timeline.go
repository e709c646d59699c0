package replication

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"

	"github.com/postrider/postrider/event"
)

// TimelineSwitch is one line of a timeline history file: Timeline ended at
// Switch, where its successor began. LSNs beyond Switch are used again for
// other events (rule 2).
type TimelineSwitch struct {
	Timeline int32
	Switch   event.LSN
	Reason   string
}

// TimelineHistory gives the switches that led to timeline tli, oldest first;
// none for timeline 1, which has no history file.
func (s *Session) TimelineHistory(ctx context.Context, tli int32) ([]TimelineSwitch, error) {
	if tli <= 1 {
		return nil, nil
	}
	subject := fmt.Sprintf("timeline %d", tli)
	r, err := pglogrepl.TimelineHistory(ctx, s.conn, tli)
	if err != nil {
		return nil, classify("read history of", subject, err)
	}
	switches, err := parseTimelineHistory(string(r.Content))
	if err != nil {
		return nil, classify("read history of", subject, err)
	}
	return switches, nil
}

// parseTimelineHistory reads lines of timeline, switch point and reason; '#' begins a comment.
func parseTimelineHistory(content string) ([]TimelineSwitch, error) {
	var switches []TimelineSwitch
	for line := range strings.Lines(content) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		sw, err := parseTimelineSwitch(line)
		if err != nil {
			return nil, err
		}
		switches = append(switches, sw)
	}
	return switches, nil
}

func parseTimelineSwitch(line string) (TimelineSwitch, error) {
	fields := strings.SplitN(line, "\t", 3)
	if len(fields) < 2 {
		return TimelineSwitch{}, fmt.Errorf("timeline history line %q: want timeline, switch point, reason", line)
	}
	tli, err := strconv.ParseInt(strings.TrimSpace(fields[0]), 10, 32)
	if err != nil {
		return TimelineSwitch{}, fmt.Errorf("timeline history line %q: %w", line, err)
	}
	lsn, err := event.ParseLSN(strings.TrimSpace(fields[1]))
	if err != nil {
		return TimelineSwitch{}, fmt.Errorf("timeline history line %q: %w", line, err)
	}
	sw := TimelineSwitch{Timeline: int32(tli), Switch: lsn}
	if len(fields) == 3 {
		sw.Reason = strings.TrimSpace(fields[2])
	}
	return sw, nil
}
