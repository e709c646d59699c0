package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/operr"
)

func TestUsageErrorsOfTheRealBinary(t *testing.T) {
	t.Parallel()
	cases := []struct {
		args []string
		want []string // in standard error
	}{
		{nil, []string{"a command is missing", "Try: postrider --help", "Exit codes:"}},
		{[]string{"bogus"}, []string{`unknown command "bogus"`}},
		{[]string{"chekpoint"}, []string{"did you mean checkpoint?"}},
		{[]string{"checkpoint"}, []string{"a command is missing", "Try: postrider checkpoint --help"}},
		{[]string{"checkpoint", "bogus"}, []string{`checkpoint: unknown command "bogus"`}},
		{[]string{"config"}, []string{"a command is missing"}},
		{[]string{"help", "bogus"}, []string{`no command "bogus"`}},
		{[]string{"--bogus"}, []string{"unknown flag: --bogus"}},
		{[]string{"run", "--bogus"}, []string{"run: unknown flag: --bogus", "Try: postrider run --help"}},
		{[]string{"run", "-x"}, []string{"unknown shorthand flag"}},
		{[]string{"run", "bogus"}, []string{`takes no arguments, got "bogus"`}},
		{[]string{"run", "--until-lsn"}, []string{"flag needs an argument"}},
		{[]string{"run", "--until-lsn", ""}, []string{`"" is not an LSN`}},
		{[]string{"run", "--until-lsn", "0/0"}, []string{"0/0 is no position"}},
		{[]string{"version", "--json=maybe"}, []string{"invalid argument"}},
		{[]string{"completion"}, []string{"wants one shell"}},
		{[]string{"completion", "tcsh"}, []string{`unknown shell "tcsh"`}},
		{[]string{"checkpoint", "wait"}, []string{"wants --lsn or --now"}},
		{[]string{"checkpoint", "wait", "--now", "--lsn", "0/1"}, []string{"--lsn and --now"}},
		{[]string{"checkpoint", "wait", "--now", "--timeout", "-1s"}, []string{"--timeout is -1s"}},
		{[]string{"checkpoint", "wait", "--now", "--timeout", "10"}, []string{"missing unit"}},
		{[]string{"setup", "--payload", "xml"}, []string{`--payload is "xml"`}},
		{[]string{"setup", "--print", "--json"}, []string{"--print writes SQL"}},
		{[]string{"setup", "--lock-timeout", "0s"}, []string{"--lock-timeout is 0s"}},
		{[]string{"replay", "list", "--limit", "-1"}, []string{"--limit is -1"}},
		{[]string{"replay", "show", "1", "--limit", "-1"}, []string{"--limit is -1"}},
		{[]string{"replay", "--all", "--rate", "NaN"}, []string{"--rate is NaN"}},
		{[]string{"backfill", "--rate", "-1"}, []string{"--rate is -1"}},
		{[]string{"recover", "--rate", "Inf"}, []string{"--rate is +Inf"}},
		{[]string{"reconcile", "--max-duplicates", "-1"}, []string{"--max-duplicates is -1"}},
		{[]string{"config", "check"}, []string{"read configuration postrider.yaml", "Try: name the file with --config"}},
		{[]string{"run"}, []string{"read configuration postrider.yaml"}},
	}
	for _, c := range cases {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			r := runBinary(t, nil, c.args...)
			r.expect(t, operr.Config.ExitCode(), append(c.want, "postrider: ", "Try: ")...)
			if r.out != "" {
				t.Errorf("standard output: %s", r.out)
			}
		})
	}
}

// TestLSNJunk is case C40 on the command line: junk is a usage error that names
// it, before anything is read or connected to, and never another position.
func TestLSNJunk(t *testing.T) {
	t.Parallel()
	junk := []string{
		"0/16B3748xyz", "1/FFFFFFFFF", " 0/1", "0/1 ", "FFFFFFFF1/0", "0x0/1", "16B3748", "/1", "0/", "-1/1", "0/1/2", "0/１", "now ",
	}
	for _, lsn := range junk {
		for _, command := range [][]string{
			{"checkpoint", "wait", "--lsn", lsn}, {"checkpoint", "advance", "--lsn", lsn, "--yes", "--reason", "a test"}, {"run", "--until-lsn", lsn},
		} {
			t.Run(strings.Join(command[:2], " ")+" "+lsn, func(t *testing.T) {
				t.Parallel()
				runBinary(t, nil, command...).expect(t, operr.Config.ExitCode(), `"`+lsn+`" is not an LSN`)
			})
		}
	}
}

func TestSuccessOfTheRealBinary(t *testing.T) {
	t.Parallel()
	cases := map[string]string{ // command line → in standard output
		"--help":                  "Exit codes:",
		"run --help":              "A second\nsignal",
		"help checkpoint wait":    "--timeout",
		"version":                 "postrider ",
		"completion bash":         "bash completion",
		"completion zsh":          "#compdef postrider",
		"completion fish":         "fish completion",
		"completion powershell":   "powershell completion",
		"config example":          "outbox.event.${aggregate_type}",
		"__complete checkpoint ":  "wait",
		"__complete completion z": "zsh",
	}
	for line, want := range cases {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			r := runBinary(t, nil, strings.Split(line, " ")...)
			r.expect(t, exitDone)
			if !strings.Contains(r.out, want) {
				t.Errorf("standard output lacks %q:\n%s", want, r.out)
			}
		})
	}
	var info versionInfo
	if err := json.Unmarshal([]byte(runBinary(t, nil, "version", "--json").out), &info); err != nil || info.Version == "" || info.Go == "" {
		t.Errorf("version --json: %+v, %v", info, err)
	}
}

// fakePipeline stands for a relay that ends as the test says.
type fakePipeline struct{ run func(context.Context) error }

func (p fakePipeline) Run(ctx context.Context) error { return p.run(ctx) }
func (p fakePipeline) Ready() error                  { return nil }
func (p fakePipeline) Status() any                   { return nil }

// Each class of error has its documented exit code, wrapped or not, with its hint on a line of its own.
func TestExitCodeFollowsTheClass(t *testing.T) {
	t.Parallel()
	path := writeConfig(t, strings.NewReplacer("${PG_PASSWORD}", "x", "${KAFKA_PASSWORD}", "x").Replace(unreachable))
	fault := errors.New("a fault")
	cases := map[int]error{
		0: nil,
		1: fault,
		2: &operr.Error{Class: operr.Config, Op: "do", Err: fault, Hint: "this"},
		3: errors.Join(fault, &operr.Error{Class: operr.Postgres, Op: "do", Err: fault, Hint: "this"}),
		4: &operr.Error{Class: operr.Kafka, Op: "do", Err: fault, Hint: "this"},
		5: &operr.Error{Class: operr.Slot, Op: "do", Err: fault, Hint: "this"},
		6: &operr.Error{Class: operr.Halted, Op: "do", Err: fault, Hint: "this"},
		7: &operr.Error{Class: operr.DrainIncomplete, Op: "do", Err: fault, Hint: "this"},
		8: &operr.Error{Class: operr.Findings, Op: "do", Err: fault, Hint: "this"},
	}
	for code, err := range cases {
		var out, errs bytes.Buffer
		a := newApp(&out, &errs)
		a.newPipeline = func(*config.Config, pipelineSettings) (pipeline, error) {
			return fakePipeline{func(context.Context) error { return err }}, nil
		}
		if got := execute([]string{"run", "--config", path}, a); got != code {
			t.Errorf("%v: exit code %d, want %d", err, got, code)
		}
		text := errs.String()
		if code > 1 && !strings.HasSuffix(text, "a fault\nTry: this\n") {
			t.Errorf("%v: standard error ends %q", err, text[max(0, len(text)-80):])
		}
		if (code == 0) != strings.Contains(text, "everything that was read is published") {
			t.Errorf("%v: the log says %q", err, text)
		}
	}
	if len(exitCodes) != len(cases) {
		t.Errorf("%d exit codes are documented, want %d", len(exitCodes), len(cases))
	}
	for i, c := range exitCodes {
		if c.code != i || c.meaning == "" {
			t.Errorf("documented exit code %d: %+v", i, c)
		}
	}
}
