package replication

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/testkit"
)

// rule 2: after a promotion the new timeline's history says where the old one ended.
// Before it, the start checks say that this is a standby, which heals.
func TestPromotion(t *testing.T) {
	t.Parallel()
	srv, db := privateDB(t, nil)
	if err := srv.Halt(devstack.Fast); err != nil {
		t.Fatal(err)
	}
	signal := filepath.Join(srv.DataDir(), "standby.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	owner, err := os.Stat(srv.DataDir())
	if err == nil {
		err = chownLike(signal, owner)
	}
	if err == nil {
		err = srv.Start(within(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	conn, err := ConnectSQL(within(t), db.DSN, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	got := Check(within(t), conn, CheckConfig{})
	if len(got) != 1 || !got[0].Transient || !strings.Contains(got[0].Error(), "standby") {
		t.Fatal(problemsOf(got))
	}
	if _, err := conn.Exec(within(t), "SELECT pg_promote()"); err != nil {
		t.Fatal(err)
	}
	var s *Session
	testkit.Eventually(t, patience, func() error {
		s, err = Connect(within(t), Config{ConnString: db.DSN, Slot: db.Slot, Publications: []string{db.Publication}})
		return err
	})
	defer s.Close(context.Background())
	sys, err := s.Identify(within(t))
	if err != nil || sys.Timeline != 2 || sys.DBName != db.Name {
		t.Fatalf("%+v, %v", sys, err)
	}
	history, err := s.TimelineHistory(within(t), sys.Timeline)
	if err != nil || len(history) != 1 || history[0].Timeline != 1 || history[0].Switch == 0 || history[0].Switch > sys.XLogPos {
		t.Fatalf("%+v, %v (now at %s)", history, err, sys.XLogPos)
	}
}
