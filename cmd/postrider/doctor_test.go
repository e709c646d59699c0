package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/doctor"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// The doctor names each fault that is planted into a healthy set-up, one at a time, with
// its fix, and is silent about the healthy one (trap 10, 21, 22, rule 6, 21).
func TestDoctorNamesPlantedFaults(t *testing.T) {
	t.Parallel()
	c := openClinic(t)
	t.Run("healthy", func(t *testing.T) { t.Parallel(); requireHealthy(t, c.admit(t)) })
	for name, f := range databaseFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f.examine(t, c.admit(t))
		})
	}
	// What is not of the database needs none of its own.
	healthy := c.admit(t)
	for name, f := range otherFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := *healthy
			f.examine(t, &p)
		})
	}
}

func requireHealthy(t *testing.T, p *patient) {
	t.Helper()
	r, found := p.examine(t)
	r.expect(t, exitDone)
	names, _ := doctor.Checks()
	if len(found) != len(names) {
		t.Errorf("%d findings of %d checks", len(found), len(names))
	}
	for _, x := range found {
		if x.State != doctor.OK && !harmless(x) || x.Fix != "" {
			t.Errorf("%s %s: %s (try: %s)", x.State, x.Name, x.Finding, x.Fix)
		}
		t.Logf("%s %s: %s", x.State, x.Name, x.Finding)
	}
	// For people: a line each, marks by the locale, within 100 columns.
	path := p.config(t)
	for mark, args := range map[string][]string{"✓ wal_level: logical\n": nil, "ok   wal_level: logical\n": {"--ascii"}} {
		r := runBinary(t, []string{"LC_ALL=C.UTF-8"}, append([]string{"doctor", "--config", path}, args...)...)
		r.expect(t, exitDone)
		if !strings.Contains(r.out, mark) || !strings.Contains(r.out, " 0 warnings, 0 failed") {
			t.Errorf("no %q in\n%s", mark, r.out)
		}
		for line := range strings.Lines(r.out) {
			if len([]rune(line)) > 101 {
				t.Errorf("%d columns: %s", len([]rune(line))-1, line)
			}
		}
	}
	r = runBinary(t, nil, "doctor", "--config", path, "--only", "wal_level", "--only", "max_*")
	if got := strings.Count(r.out, "\n"); got != 5 || !strings.Contains(r.out, "ok   wal_level: logical\n") {
		t.Errorf("--only gave\n%s", r.out)
	}
	runBinary(t, nil, "doctor", "--config", path, "--only", "wal_height").expect(t, operr.Config.ExitCode(), `no check is named "wal_height"`, "Try: ")
}

// A relay that runs is no fault: the slot is taken, by us.
func TestDoctorBesideARelay(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	broker := testkit.Kafka(t)
	topic := broker.NewTopic(t, 1, nil)
	path := configFor(t, db, "  - {table: public.outbox, profile: default, routes: [{topic: "+topic+"}]}\n")
	rewrite(t, path, `"127.0.0.1:1"`, fmt.Sprintf("%q", broker.Bootstrap()[0]))
	runBinary(t, nil, "setup", "--create-outbox", "--config", path).expect(t, exitDone)
	startRun(t, path)
	testkit.EventuallyTrue(t, patience, "the slot is held", func() bool {
		return scalar(t, db, "SELECT active::text FROM pg_replication_slots WHERE slot_name = $1", db.Slot) == "true"
	})
	r := runBinary(t, nil, "doctor", "--config", path, "--only", "slot", "--only", "checkpoint", "--only", "publication", "--only", "max_*s")
	r.expect(t, exitDone)
	if !strings.Contains(r.out, "active for PID") || !strings.Contains(r.out, " 0 warnings, 0 failed") {
		t.Errorf("%s", r.out)
	}
}

// With both servers away everything is named, in bounded time, and the exit code says so.
func TestDoctorWithNothingThere(t *testing.T) {
	t.Parallel()
	r := runBinary(t, secretEnv(), "doctor", "--config", writeConfig(t, unreachable))
	r.expect(t, operr.Findings.ExitCode(), "failed", "could not be checked")
	for _, text := range []string{"FAIL postgres: ", "FAIL brokers: ", "not checked, because PostgreSQL cannot be used", "not checked, because Kafka cannot be used"} {
		if !strings.Contains(r.out, text) {
			t.Errorf("no %q in\n%s", text, r.out)
		}
	}
	if strings.Contains(r.out+r.err, pgSecret) || strings.Contains(r.out+r.err, kafkaSecret) {
		t.Error("a secret was shown")
	}
}
