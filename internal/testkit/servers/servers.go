// Package servers starts the PostgreSQL and the Kafka that a whole test run
// shares. Only the command testservers imports it, so that test binaries stay
// free of the Docker client.
package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/postrider/postrider/internal/devstack"
)

// Environment variables: the first two choose, the others tell test binaries
// what runs.
const (
	// ChoiceEnv is auto (default), docker, local or kfake.
	ChoiceEnv = "POSTRIDER_TEST_SERVERS"
	// RequireRealEnv set to 1 makes anything less than a real PostgreSQL and a
	// real Kafka a failure.
	RequireRealEnv = "POSTRIDER_TEST_REQUIRE_REAL"
	// PostgresEnv is a superuser's DSN.
	PostgresEnv = "POSTRIDER_TEST_POSTGRES"
	// KafkaEnv lists broker addresses, separated by commas.
	KafkaEnv = "POSTRIDER_TEST_KAFKA"
	// KafkaKindEnv is "real" or "kfake".
	KafkaKindEnv = "POSTRIDER_TEST_KAFKA_KIND"
)

// Choice says where servers come from.
type Choice string

// The choices of ChoiceEnv.
const (
	Auto   Choice = "auto"   // docker where an engine answers, else local, else kfake
	Docker Choice = "docker" // containers, nothing else
	Local  Choice = "local"  // PostgreSQL's binaries, Kafka's jars, nothing else
	Kfake  Choice = "kfake"  // PostgreSQL's binaries, kfake
)

// ParseChoice reads ChoiceEnv's value.
func ParseChoice(s string) (Choice, error) {
	switch c := Choice(s); c {
	case "":
		return Auto, nil
	case Auto, Docker, Local, Kfake:
		return c, nil
	}
	return "", fmt.Errorf("%s=%q: want auto, docker, local or kfake", ChoiceEnv, s)
}

// Kind is one of the two servers.
type Kind string

// The kinds.
const (
	KindPostgres Kind = "postgres"
	KindKafka    Kind = "kafka"
)

// running is one started server.
type running struct {
	env   []string // KEY=VALUE for test binaries
	about string   // for the first lines of the run
	real  bool
	stop  func() error
}

// Servers are what Start started.
type Servers struct {
	all []running
}

// Start starts the kinds that are asked for, both at once.
func Start(ctx context.Context, choice Choice, requireReal bool, kinds ...Kind) (*Servers, error) {
	type result struct {
		running
		err error
	}
	results := make([]result, len(kinds))
	done := make(chan struct{})
	for i, kind := range kinds {
		go func() {
			defer func() { done <- struct{}{} }()
			r, err := startKind(ctx, choice, kind)
			if err == nil && requireReal && !r.real {
				err = errors.Join(fmt.Errorf("%s=1, but only %s is to be had", RequireRealEnv, r.about), r.stop())
			}
			results[i] = result{r, err}
		}()
	}
	for range kinds {
		<-done
	}
	s := &Servers{}
	var errs []error
	for i, r := range results {
		if r.err != nil {
			errs = append(errs, fmt.Errorf("start %s for the tests: %w", kinds[i], r.err))
			continue
		}
		s.all = append(s.all, r.running)
	}
	if len(errs) > 0 {
		return nil, errors.Join(append(errs, s.Stop())...)
	}
	return s, nil
}

// Env is what test binaries need in their environment.
func (s *Servers) Env() []string {
	var env []string
	for _, r := range s.all {
		env = append(env, r.env...)
	}
	return env
}

// About has one line for each server.
func (s *Servers) About() []string {
	var lines []string
	for _, r := range s.all {
		lines = append(lines, r.about)
	}
	return lines
}

// Stop ends them.
func (s *Servers) Stop() error {
	var errs []error
	for _, r := range s.all {
		errs = append(errs, r.stop())
	}
	s.all = nil
	return errors.Join(errs...)
}

func startKind(ctx context.Context, choice Choice, kind Kind) (running, error) {
	if choice == Docker || choice == Auto {
		r, err := startContainer(ctx, kind)
		if err == nil || choice == Docker {
			return r, err
		}
		if !errors.Is(err, errNoEngine) {
			// An engine that cannot get an image is no reason to test less.
			fmt.Fprintf(os.Stderr, "testservers: no container for %s, going on without: %v\n", kind, err)
		}
	}
	if kind == KindPostgres {
		return startPostgres(ctx)
	}
	if choice == Kfake {
		return startKfake("asked for")
	}
	r, err := startKafka(ctx)
	if err != nil && choice == Auto {
		return startKfake(err.Error())
	}
	return r, err
}

// postgresSettings make room for many tests at once.
var postgresSettings = map[string]string{
	"max_connections":       "400",
	"max_wal_senders":       "150",
	"max_replication_slots": "150",
	"max_worker_processes":  "16",
	"max_wal_size":          "2GB",
}

func startPostgres(ctx context.Context) (running, error) {
	p, err := devstack.StartPostgres(ctx, devstack.PostgresOptions{Settings: postgresSettings})
	if err != nil {
		return running{}, err
	}
	return running{
		env:   []string{PostgresEnv + "=" + p.DSN()},
		about: fmt.Sprintf("PostgreSQL %s, real, from %s", p.Version, p.Source),
		real:  true,
		stop:  func() error { return p.Stop(devstack.Immediate) },
	}, nil
}

func startKafka(ctx context.Context) (running, error) {
	k, err := devstack.StartKafka(ctx, devstack.KafkaOptions{HeapMB: 768})
	if err != nil {
		return running{}, err
	}
	return running{
		env:   kafkaEnv("real", k.Bootstrap()),
		about: fmt.Sprintf("Kafka %s, real, from its %s", k.Version, k.Source),
		real:  true,
		stop:  k.Stop,
	}, nil
}

func startKfake(why string) (running, error) {
	k, err := devstack.StartKfake(devstack.KfakeOptions{})
	if err != nil {
		return running{}, err
	}
	return running{
		env:   kafkaEnv("kfake", k.Bootstrap()),
		about: "kfake, NOT a real Kafka: " + why,
		stop:  k.Stop,
	}, nil
}

func kafkaEnv(kind string, brokers []string) []string {
	return []string{KafkaEnv + "=" + strings.Join(brokers, ","), KafkaKindEnv + "=" + kind}
}
