package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/postrider/postrider/bench/result"
)

func methodSection(v view, p *markdown) {
	e := v.run.Environment
	p.line("## What was measured, and how")
	p.line("### Machine and versions")
	rows := [][]string{
		{"machine", orMissing(e.Machine)},
		{"cores", positive(e.Cores, "")},
		{"memory", positive(e.MemoryMB, " MB")},
		{"begun", orMissing(e.Started)},
		{"took", took(e.Took)},
	}
	for _, k := range slices.Sorted(maps.Keys(e.Versions)) {
		rows = append(rows, []string{k, e.Versions[k]})
	}
	p.table(false, []string{"", ""}, rows)
	settings(p, "PostgreSQL's settings that differ from its defaults", e.PGSettings)
	if kafka, ok := e.Settings["kafka"]; ok {
		p.line("### Kafka's settings")
		p.line("%s", oneLine(kafka))
	}
	p.line("### Settings of each contender that differ from its defaults")
	if len(e.Settings) == 0 {
		p.line("*Missing: not recorded in this run.*")
	}
	rows = nil
	for _, c := range contenders(v.run.Results) {
		if text, ok := e.Settings[c]; ok {
			rows = append(rows, []string{nameOf(c), orDefaults(text)})
		}
	}
	if len(rows) > 0 {
		p.table(false, []string{"contender", "settings"}, rows)
	}
	p.line("### How the figures are taken")
	p.list(method)
}

func settings(p *markdown, title string, values map[string]string) {
	p.line("### %s", title)
	if len(values) == 0 {
		p.line("*Missing: not recorded in this run.*")
		return
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(values)) {
		parts = append(parts, fmt.Sprintf("`%s = %s`", k, values[k]))
	}
	p.line("%s", strings.Join(parts, ", "))
}

func orDefaults(s string) string {
	if strings.TrimSpace(s) == "" {
		return "none"
	}
	return s
}

func positive(n int, unit string) string {
	if n == 0 {
		return orMissing("")
	}
	return grouped(int64(n)) + unit
}

func took(s float64) string {
	if s <= 0 {
		return "*not recorded: the run was not finished*"
	}
	return fmt.Sprintf("%d min %02d s", int(s)/60, int(s)%60)
}

// method is what result.Result promises of its fields, in words for a reader.
var method = []string{
	"**Rounds** are interleaved: each round runs every contender once, so that a slow minute of the machine meets all. Tables give the median, and the " +
		"smallest and largest round in brackets. Figures are rounded to three digits; differences under some 15 % are noise.",
	"**Time of a drain** runs for Postrider from START_REPLICATION, for every other contender only from its first event in the topic (which favours it), to " +
		"the moment at which the topic has the last one; then the position has to be confirmed, too. For `pg_recvlogical` and the decoding alone it runs to the " +
		"backlog's end. What a contender needs from its start as a process to its first event is the column *to first event*.",
	"**CPU** is user and system time from the kernel's accounting (`/proc/PID/stat`, in steps of 10 ms): of the contender's process with all its threads, " +
		"of the PostgreSQL backends that serve it, and of the broker, over the step, without their start; per event it is divided by the events of the step.",
	"**Memory** is the process's resident set: its peak as the kernel keeps it (`VmHWM`), and samples over time (`VmRSS`).",
	"**Latency** runs from the return of the commit to its writer to the moment at which a consumer of the topic has the event, in one program with one clock. Events " +
		"are committed one by one, evenly spread over the time; a slow commit delays no other session's.",
	"**Correctness** is checked before a speed counts: every event that was committed has arrived, for each key in commit order, with the payload's bytes as " +
		"PostgreSQL shows them (`payload::text`). Duplicates are allowed by at-least-once and are reported. A step that fails the check, and a step with an error, " +
		"counts in no median and no ratio.",
	"**Postrider runs as it ships**: checkpoints with fsync, `acks=all`, an idempotent producer, every check and its metrics on; nothing was switched off for speed.",
	"**Slow contenders get fewer rows**, so that the run ends within the hour; the column *events* has them.",
}

func repeatSection(v view, p *markdown) {
	p.line("## Repeat it")
	p.line("```sh\nmake bench                # the whole run, at most an hour; writes this page\nmake bench ARGS=--quick   # smaller sizes, five minutes; its page goes to " +
		"bench/.run/quick/docs\nmake bench ARGS=--resume  # goes on where a run was stopped\nmake bench ARGS=--report  # measures nothing, writes the page anew\n```")
	p.line("It needs Go, and for Kafka and Debezium Java and Maven. It starts a PostgreSQL and an Apache Kafka of its own; results are lines of JSON in "+
		"`bench/.run/%s`, from which this page and its charts are made. To size your own installation, `postrider bench` measures against your PostgreSQL and "+
		"your brokers.", result.File)
}
