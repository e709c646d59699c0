package sizing

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/replication"
)

// namePrefix begins the name of everything that a run makes.
const namePrefix = "postrider_bench_"

func newName() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return namePrefix + hex.EncodeToString(b[:])
}

// workbench is what a run makes, and removes whatever becomes of the run.
type workbench struct {
	cfg  Config
	name string
	// dsn reaches the database of that name.
	dsn  string
	made []made
}

// made is one thing that may exist by now.
type made struct {
	what, byHand string
	remove       func(context.Context) error
}

// will notes a thing before it is made: an answer may be lost.
func (w *workbench) will(m made) { w.made = append(w.made, m) }

// build makes everything in the order of setup: the slot last, since the stream fails
// at rows that are older than the publication (trap 22).
func (w *workbench) build(ctx context.Context, admin *pgx.Conn) error {
	hand := byHand(w.name)
	w.will(made{"database " + w.name, hand[1], w.dropDatabase})
	// template0 has nothing of anybody's in it, and nobody is connected to it.
	if _, err := admin.Exec(ctx, "CREATE DATABASE "+w.name+" TEMPLATE template0"); err != nil {
		return sqlError("create", "database "+w.name, err)
	}
	if _, err := migrations.Apply(ctx, w.dsn); err != nil {
		return err
	}
	conn, err := replication.ConnectSQL(ctx, w.dsn, appName)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := w.tables(ctx, conn); err != nil {
		return err
	}
	w.will(made{"slot " + w.name, hand[0], w.dropSlot})
	if err := w.slot(ctx, conn); err != nil {
		return err
	}
	w.will(made{"topic " + w.name, hand[2], w.topic().remove})
	refused, err := w.topic().create(ctx, w.cfg.Partitions)
	if refused {
		w.made = w.made[:len(w.made)-1]
	}
	return err
}

func (w *workbench) topic() topic { return topic{cfg: w.cfg.Kafka, name: w.name} }

var outbox = replication.Table{Schema: "public", Name: "outbox"}

func (w *workbench) tables(ctx context.Context, conn *pgx.Conn) error {
	table, err := migrations.OutboxTableSQL(migrations.Table(outbox), migrations.JSONB)
	if err != nil {
		return err
	}
	for _, sql := range []string{table, loadSQL} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return sqlError("create", "the tables of "+w.name, err)
		}
	}
	_, err = replication.EnsurePublication(ctx, conn, replication.PublicationSpec{Name: w.name, Tables: []replication.Table{outbox}})
	return err
}

// slot makes the slot and notes its birth, as setup does.
func (w *workbench) slot(ctx context.Context, conn *pgx.Conn) error {
	created, err := replication.CreateSlot(ctx, conn, replication.SlotSpec{ConnString: w.dsn, Slot: w.name})
	if err != nil {
		return err
	}
	store := checkpoint.NewStore(conn, checkpoint.StoreConfig{Publisher: w.name, Slot: w.name, Holder: fmt.Sprintf("bench:%d", os.Getpid())})
	system, err := store.System(ctx)
	if err != nil {
		return err
	}
	return store.Register(ctx, system, created.ConsistentPoint, created.Snapshot)
}

// How long a thing may take to go, and a try at it.
const (
	removeTimeout = 30 * time.Second
	removeTry     = 5 * time.Second
	removePause   = 200 * time.Millisecond
)

// clear removes what was made, last first, and gives what is left, with the command
// that removes it by hand. It goes on where ctx has ended. A cluster that deletes no
// topics is no error.
func (w *workbench) clear(ctx context.Context) (left []string, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	var problems []error
	for _, m := range slices.Backward(w.made) {
		err := insist(ctx, m.remove)
		if err == nil {
			continue
		}
		left = append(left, m.what+", to be removed with: "+m.byHand)
		if !mayNot(err) {
			problems = append(problems, err)
		}
	}
	w.made = nil
	if len(problems) == 0 {
		return left, nil
	}
	return left, &operr.Error{
		Class: operr.ClassOf(problems[0]), Op: "remove", Subject: "what the run has made", Err: errors.Join(problems...),
		Hint: "by hand: " + strings.Join(left, "; "),
	}
}

// insist tries again: a server may be restarting, a session may hold the slot a moment longer.
func insist(ctx context.Context, remove func(context.Context) error) error {
	// Each thing has its share of the time, so that a dead broker does not cost the slot.
	ctx, cancel := context.WithTimeout(ctx, removeTimeout/3)
	defer cancel()
	for {
		try, stop := context.WithTimeout(ctx, removeTry)
		err := remove(try)
		stop()
		if err == nil || mayNot(err) {
			return err
		}
		select {
		case <-time.After(removePause):
		case <-ctx.Done():
			return err
		}
	}
}

// mayNot says that the cluster does not let this user, or anybody, delete a topic.
func mayNot(err error) bool {
	return errors.Is(err, kerr.TopicDeletionDisabled) || errors.Is(err, kerr.TopicAuthorizationFailed)
}

func (w *workbench) dropSlot(ctx context.Context) error {
	return w.onServer(ctx, func(conn *pgx.Conn) error {
		slot, err := replication.ReadSlot(ctx, conn, w.name)
		switch {
		case err != nil || !slot.Exists:
			return err
		case slot.Active:
			_, err = conn.Exec(ctx, "SELECT pg_catalog.pg_terminate_backend($1)", int32(slot.ActivePID))
			return errors.Join(err, &operr.Error{Class: operr.Slot, Op: "drop", Subject: "slot " + w.name, Err: fmt.Errorf("process %d of the server holds it", slot.ActivePID)})
		}
		if _, err := conn.Exec(ctx, "SELECT pg_catalog.pg_drop_replication_slot($1)", w.name); err != nil {
			return &operr.Error{Class: operr.Slot, Op: "drop", Subject: "slot " + w.name, Err: err}
		}
		return nil
	})
}

func (w *workbench) dropDatabase(ctx context.Context) error {
	return w.onServer(ctx, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+w.name+" WITH (FORCE)"); err != nil {
			return sqlError("drop", "database "+w.name, err)
		}
		return nil
	})
}

// onServer is a new session each time, in the operator's database.
func (w *workbench) onServer(ctx context.Context, do func(*pgx.Conn) error) error {
	conn, err := replication.ConnectSQL(ctx, w.cfg.ConnString, appName)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return do(conn)
}
