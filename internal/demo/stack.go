package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
)

// The names in the demo's database and broker.
const (
	database    = "shop"
	outboxTable = "shop.outbox"
	publication = "outbox_pub"
	relaySlot   = "outbox_slot"
	topicPrefix = "outbox.event."
	partitions  = 6
)

// The aggregate types, each with a topic of its own.
const (
	typeOrder    = "order"
	typeCustomer = "customer"
)

func topics() []string { return []string{topicPrefix + typeOrder, topicPrefix + typeCustomer} }

// stack is the servers and their folder.
type stack struct {
	postgres *devstack.Postgres
	broker   broker
	// root holds the configuration and the relay's log. Without Keep it is
	// PostgreSQL's own temporary folder, which devstack removes even when this
	// process is killed.
	root string
	keep bool
}

// startStack starts both servers at once.
func startStack(ctx context.Context, opts Options) (*stack, error) {
	s := &stack{keep: opts.Keep}
	if s.keep {
		root, err := keptFolder()
		if err != nil {
			return nil, err
		}
		s.root = root
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		s.postgres, err = startPostgres(groupCtx, s.folder("postgres"))
		return err
	})
	group.Go(func() (err error) {
		s.broker, err = startBroker(groupCtx, opts.RealKafka, s.folder("broker"))
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	if !s.keep {
		s.root = filepath.Dir(s.postgres.DataDir())
	}
	return s, nil
}

// keptFolder is open to PostgreSQL's user, which is another one for root.
func keptFolder() (string, error) {
	root, err := os.MkdirTemp("", "postrider-demo-")
	if err != nil {
		return "", err
	}
	return root, os.Chmod(root, 0o755)
}

// folder is "", a temporary one, unless everything is kept.
func (s *stack) folder(name string) string {
	if !s.keep {
		return ""
	}
	return filepath.Join(s.root, name)
}

func startPostgres(ctx context.Context, dir string) (*devstack.Postgres, error) {
	p, err := devstack.StartPostgres(ctx, devstack.PostgresOptions{Dir: dir})
	if err != nil {
		return nil, &operr.Error{
			Class: operr.Postgres, Op: "start", Subject: "PostgreSQL", Err: err,
			Hint: "install PostgreSQL's server (14 or newer), or let this machine fetch it",
		}
	}
	return p, nil
}

func (s *stack) postgresName() string { return "PostgreSQL " + s.postgres.Version }

func (s *stack) dsn() string { return s.postgres.DatabaseDSN(database) }

// stop ends the servers; PostgreSQL last, because its folder is root.
func (s *stack) stop() error {
	var errs []error
	if s.broker != nil {
		errs = append(errs, s.broker.Stop())
	}
	if s.postgres != nil {
		mode := devstack.Immediate
		if s.keep {
			mode = devstack.Fast
		}
		errs = append(errs, s.postgres.Stop(mode))
	}
	return errors.Join(errs...)
}

// createShop makes the database and the shop's own tables; the outbox is for
// `postrider setup` to create.
func (s *stack) createShop(ctx context.Context) error {
	if err := execute(ctx, s.postgres.DSN(), "CREATE DATABASE "+database); err != nil {
		return err
	}
	return execute(ctx, s.dsn(), shopTables)
}

func execute(ctx context.Context, dsn, sql string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}

// createTopics makes the topics ahead of the relay: the witness looks at their ends
// from the beginning.
func (s *stack) createTopics(ctx context.Context) error {
	client, err := s.broker.Client(quick()...)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("the broker did not answer within 30s"))
	defer cancel()
	answers, err := kadm.NewClient(client).CreateTopics(ctx, partitions, 1, nil, topics()...)
	if err != nil {
		return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
	}
	return answers.Error()
}

// quick makes a client notice soon that the broker is back.
func quick() []kgo.Opt {
	return []kgo.Opt{
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.DialTimeout(time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }),
	}
}
