package run

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/bench/contender"
	"github.com/postrider/postrider/bench/result"
	"github.com/postrider/postrider/bench/rig"
)

// environment writes down what the figures depend on.
func (s *session) environment(ctx context.Context, quick bool) error {
	memory := memoryMB()
	env := result.Environment{
		Cores: runtime.NumCPU(), MemoryMB: memory, Quick: quick, Started: time.Now().UTC().Format(time.RFC3339),
		Machine:    fmt.Sprintf("%s, %d cores, %d MB, Linux %s", cpuModel(), runtime.NumCPU(), memory, kernel()),
		Versions:   map[string]string{"postgresql": s.rig.Postgres().Version, "kafka": s.rig.Kafka().Version, "java": javaVersion(ctx), "go": strings.TrimPrefix(runtime.Version(), "go")},
		PGSettings: rig.PGSettings(),
		Settings: map[string]string{
			contender.Peek:        "pg_logical_slot_peek_binary_changes in a SELECT count(*): no network, no reader",
			contender.Recvlogical: "to /dev/null over TCP, the same options of pgoutput",
			"kafka":               rig.KafkaSettings,
		},
	}
	for _, step := range s.plan.Steps {
		if c := s.contenders[step.Contender]; c != nil {
			maps.Copy(env.Versions, c.Versions())
			env.Settings[c.Name()] = c.Describe()
		}
	}
	return s.store.Begin(env)
}

// cpuModel is the processor's name; on some machines there is none.
func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	m := regexp.MustCompile(`(?m)^model name\s*:\s*(.*)$`).FindSubmatch(text)
	if m == nil {
		return runtime.GOARCH
	}
	return string(m[1])
}

func memoryMB() int {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	m := regexp.MustCompile(`(?m)^MemTotal:\s*(\d+) kB$`).FindSubmatch(text)
	if m == nil {
		return 0
	}
	kb, err := strconv.Atoi(string(m[1]))
	if err != nil {
		return 0
	}
	return kb / 1024
}

func kernel() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}

// javaVersion is that of the broker and of Debezium; empty where it cannot be told.
func javaVersion(ctx context.Context) string {
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = home + "/bin/java"
	}
	out, err := exec.CommandContext(ctx, java, "-version").CombinedOutput()
	if err != nil {
		return ""
	}
	m := regexp.MustCompile(`version "([^"]+)"`).FindSubmatch(out)
	if m == nil {
		return ""
	}
	return string(m[1])
}
