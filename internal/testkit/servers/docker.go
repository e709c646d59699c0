package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
)

// Images; another registry or tag is named in the environment.
const (
	postgresImageEnv = "POSTRIDER_TEST_POSTGRES_IMAGE"
	kafkaImageEnv    = "POSTRIDER_TEST_KAFKA_IMAGE"

	defaultPostgresImage = "postgres:17"
	defaultKafkaImage    = "apache/kafka:4.1.1"
)

var errNoEngine = errors.New("no Docker engine answers")

// engine says whether a Docker engine answers. The library panics where it
// finds no trace of one.
func engine(ctx context.Context) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errNoEngine, r)
		}
	}()
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return fmt.Errorf("%w: %w", errNoEngine, err)
	}
	defer provider.Close()
	if err := provider.Health(ctx); err != nil {
		return fmt.Errorf("%w: %w", errNoEngine, err)
	}
	return nil
}

func startContainer(ctx context.Context, kind Kind) (running, error) {
	if err := engine(ctx); err != nil {
		return running{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute) // an image may have to be pulled
	defer cancel()
	if kind == KindPostgres {
		return postgresContainer(ctx)
	}
	return kafkaContainer(ctx)
}

func postgresContainer(ctx context.Context) (running, error) {
	image := envOr(postgresImageEnv, defaultPostgresImage)
	cmd := []string{"postgres", "-c", "wal_level=logical", "-c", "fsync=off", "-c", "track_commit_timestamp=on"}
	for name, value := range postgresSettings {
		cmd = append(cmd, "-c", name+"="+value)
	}
	c, err := testcontainers.Run(ctx, image,
		testcontainers.WithExposedPorts("5432/tcp"),
		testcontainers.WithEnv(map[string]string{"POSTGRES_HOST_AUTH_METHOD": "trust"}),
		testcontainers.WithCmd(cmd...),
		// The entry point starts the server twice; the second time it is there to stay.
		testcontainers.WithWaitStrategy(wait.ForAll(
			wait.ForLog("ready to accept connections").WithOccurrence(2),
			wait.ForListeningPort("5432/tcp"))),
	)
	if err != nil {
		return running{}, errors.Join(err, testcontainers.TerminateContainer(c))
	}
	address, err := c.PortEndpoint(ctx, "5432/tcp", "")
	if err != nil {
		return running{}, errors.Join(err, testcontainers.TerminateContainer(c))
	}
	return running{
		env:   []string{PostgresEnv + "=postgres://postgres@" + address + "/postgres?sslmode=disable"},
		about: "PostgreSQL, real, in a container of " + image,
		real:  true,
		stop:  func() error { return testcontainers.TerminateContainer(c) },
	}, nil
}

// kafkaContainer publishes the broker's port under the same number on the host:
// the address that a broker advertises must be known before it starts.
func kafkaContainer(ctx context.Context) (running, error) {
	image := envOr(kafkaImageEnv, defaultKafkaImage)
	port, err := freePort()
	if err != nil {
		return running{}, err
	}
	inside, err := network.ParsePort(strconv.Itoa(port) + "/tcp")
	if err != nil {
		return running{}, err
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	c, err := testcontainers.Run(ctx, image,
		testcontainers.WithExposedPorts(inside.String()),
		testcontainers.WithEnv(kafkaContainerEnv(port)),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
			h.PortBindings = network.PortMap{inside: {{HostIP: loopback, HostPort: strconv.Itoa(port)}}}
		}),
		testcontainers.WithWaitStrategy(wait.ForLog("Kafka Server started").WithStartupTimeout(time.Minute)),
	)
	if err != nil {
		return running{}, errors.Join(err, testcontainers.TerminateContainer(c))
	}
	return running{
		env:   kafkaEnv("real", []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}),
		about: "Kafka, real, in a container of " + image,
		real:  true,
		stop:  func() error { return testcontainers.TerminateContainer(c) },
	}, nil
}

// kafkaContainerEnv is the official image's way to write server.properties.
func kafkaContainerEnv(port int) map[string]string {
	return map[string]string{
		"KAFKA_NODE_ID":                                  "1",
		"KAFKA_PROCESS_ROLES":                            "broker,controller",
		"KAFKA_LISTENERS":                                fmt.Sprintf("PLAINTEXT://:%d,CONTROLLER://:29093", port),
		"KAFKA_ADVERTISED_LISTENERS":                     fmt.Sprintf("PLAINTEXT://127.0.0.1:%d", port),
		"KAFKA_CONTROLLER_LISTENER_NAMES":                "CONTROLLER",
		"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP":           "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
		"KAFKA_CONTROLLER_QUORUM_VOTERS":                 "1@localhost:29093",
		"KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR":         "1",
		"KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
		"KAFKA_TRANSACTION_STATE_LOG_MIN_ISR":            "1",
		"KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS":         "0",
		"KAFKA_AUTO_CREATE_TOPICS_ENABLE":                "false",
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, fmt.Errorf("unexpected address %v", l.Addr())
	}
	return addr.Port, nil
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}
