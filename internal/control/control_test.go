package control_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/postrider/postrider/internal/control"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/replication"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const timeout = 5 * time.Second

// house is a database with a checkpoint. Its slot is streamed to nobody, unless held.
type house struct {
	*testkit.DB
	t *testing.T
}

func newHouse(t *testing.T) house {
	t.Helper()
	h := house{testkit.Postgres(t), t}
	if _, err := migrations.Apply(t.Context(), h.DSN); err != nil {
		t.Fatal(err)
	}
	h.Exec(t, `INSERT INTO postrider.checkpoint (publisher, slot, system_id, timeline, confirmed_lsn, holder) VALUES ('p', '`+h.Slot+`', '1', 1, '0/1', 'host:1')`)
	return h
}

// held has the slot streamed to a process, for which the row is claimed.
func (h house) held() {
	h.t.Helper()
	h.Exec(h.t, `CREATE PUBLICATION "`+h.Publication+`"`)
	h.Exec(h.t, `SELECT pg_create_logical_replication_slot('`+h.Slot+`', 'pgoutput')`)
	session := must[*replication.Session](h.t)(replication.Connect(h.t.Context(), replication.Config{
		ConnString: h.DSN, Slot: h.Slot, Publications: []string{h.Publication},
	}))
	stream := must[*replication.Stream](h.t)(session.Start(h.t.Context()))
	h.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		_ = stream.Close(ctx)
	})
	h.Exec(h.t, fmt.Sprintf(`UPDATE postrider.checkpoint SET walsender_pid = %d`, session.BackendPID()))
}

func (h house) text(sql string) (s string) {
	h.t.Helper()
	conn, err := pgx.Connect(h.t.Context(), h.DSN)
	if err != nil {
		h.t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(h.t.Context()))
	if err := conn.QueryRow(h.t.Context(), sql).Scan(&s); err != nil {
		h.t.Fatalf("%v in %s", err, sql)
	}
	return s
}

func (h house) desk(actor string) *control.Desk { return control.NewDesk(h.Conn(h.t), "p", actor) }

func (h house) post() *control.Post { return control.NewPost(h.Conn(h.t), "p", timeout) }

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Without a relay the wish is kept for the next one; asked again it is the same wish,
// and the audit has a line for each change alone.
func TestWishWithoutARelay(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	ana, bob := h.desk("ana"), h.desk("bob")
	got := must[control.Asked](t)(ana.Ask(t.Context(), control.Pause, "an upgrade"))
	if !got.Changed || got.Relay != "" || got.Command != 0 || !got.Pausing.On() || got.Pausing.By != "ana" {
		t.Errorf("first: %+v", got)
	}
	again := must[control.Asked](t)(bob.Ask(t.Context(), control.Pause, ""))
	if again.Changed || again.Pausing != got.Pausing {
		t.Errorf("again: %+v", again)
	}
	in := must[control.Inbox](t)(h.post().Read(t.Context()))
	if in.Pausing != got.Pausing || len(in.Open) != 0 {
		t.Errorf("inbox %+v", in)
	}
	end := must[control.Asked](t)(bob.Ask(t.Context(), control.Resume, "done"))
	if !end.Changed || end.Pausing.On() {
		t.Errorf("end: %+v", end)
	}
	if got := h.text(`SELECT string_agg(concat_ws(' ', action, actor, detail->>'from', detail->>'to', detail->>'reason', detail->>'paused_by'), ', ' ORDER BY id) FROM postrider.audit`); got !=
		"pause ana running paused an upgrade, resume bob paused running done ana" {
		t.Errorf("audit: %s", got)
	}
}

func TestUnknownPublisher(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	_, err := control.NewDesk(h.Conn(t), "nobody", "ana").Ask(t.Context(), control.Pause, "")
	if operr.ClassOf(err) != operr.Slot || operr.HintOf(err) == "" {
		t.Errorf("error %v", err)
	}
}

// A relay is notified, takes the command, says how far it is, and answers once.
func TestRelayAnswersInTheRow(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.held()
	listener := h.Conn(t)
	if _, err := listener.Exec(t.Context(), "LISTEN "+control.Channel); err != nil {
		t.Fatal(err)
	}
	desk, post := h.desk("ana"), h.post()
	asked := must[control.Asked](t)(desk.Ask(t.Context(), control.Pause, ""))
	if asked.Relay != "host:1" || asked.Command == 0 {
		t.Fatalf("asked %+v", asked)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if n, err := listener.WaitForNotification(ctx); err != nil || n.Payload != "p" {
		t.Fatalf("notification %+v, %v", n, err)
	}
	in := must[control.Inbox](t)(post.Read(t.Context()))
	if len(in.Open) != 1 || in.Open[0] != (control.Command{ID: asked.Command, Verb: control.Pause, AskedBy: "ana"}) {
		t.Fatalf("inbox %+v", in)
	}
	if r := must[control.Reply](t)(desk.Look(t.Context(), asked.Command)); r.Taken || r.Done || r.Relay != "host:1" {
		t.Errorf("before: %+v", r)
	}
	ids := []int64{asked.Command}
	must[struct{}](t)(struct{}{}, post.Take(t.Context(), ids, control.Answer{State: control.Draining, Unacknowledged: 7}))
	short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	r, err := desk.Await(short, asked.Command)
	if !errors.Is(err, context.DeadlineExceeded) || !r.Taken || r.Done || r.Answer.Unacknowledged != 7 {
		t.Errorf("under way: %+v, %v", r, err)
	}
	must[struct{}](t)(struct{}{}, post.Reply(t.Context(), ids, control.Answer{State: control.Paused, Confirmed: "0/9"}, ""))
	must[struct{}](t)(struct{}{}, post.Reply(t.Context(), ids, control.Answer{State: control.Running}, "too late"))
	if r := must[control.Reply](t)(desk.Await(t.Context(), asked.Command)); !r.Done || r.Problem != "" || r.Answer.State != control.Paused || r.Answer.Confirmed != "0/9" {
		t.Errorf("done: %+v", r)
	}
	if in := must[control.Inbox](t)(post.Read(t.Context())); len(in.Open) != 0 {
		t.Errorf("open: %+v", in.Open)
	}
}

// Many operators at once: each changes the wish or finds it so, and the audit tells one
// unbroken story.
func TestOperatorsAtOnce(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var wg sync.WaitGroup
	for i := range 8 {
		desk := h.desk("operator")
		wg.Go(func() {
			for n := range 10 {
				verb := control.Pause
				if (n+i)%2 == 0 {
					verb = control.Resume
				}
				if _, err := desk.Ask(context.Background(), verb, ""); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	story := h.text(`SELECT string_agg(left(action, 1), '' ORDER BY id) FROM postrider.audit`)
	if strings.Contains(story, "pp") || strings.Contains(story, "rr") || !strings.HasPrefix(story, "p") {
		t.Errorf("audit: %s", story)
	}
}

// A relay that reads while somebody asks sees a command with the wish that came with it,
// or neither: or it would answer that it was overtaken.
func TestReadIsOfOneMoment(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.held()
	desk, post := h.desk("ana"), h.post()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			verb := []control.Verb{control.Pause, control.Resume}[n%2]
			if _, err := desk.Ask(context.Background(), verb, ""); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 300 {
		in := must[control.Inbox](t)(post.Read(t.Context()))
		if n := len(in.Open); n > 0 && !in.Pausing.Wants(in.Open[n-1].Verb) {
			t.Errorf("the last command is %s, and the wish %+v", in.Open[n-1].Verb, in.Pausing)
			break
		}
		var ids []int64
		for _, c := range in.Open {
			ids = append(ids, c.ID)
		}
		must[struct{}](t)(struct{}{}, post.Reply(t.Context(), ids, control.Answer{}, ""))
	}
	close(stop)
	wg.Wait()
}

// A database that setup has not brought up to date says what to do.
func TestOldSchema(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	_, err := control.NewPost(db.Conn(t), "p", timeout).Read(t.Context())
	if operr.ClassOf(err) != operr.Postgres || !strings.Contains(operr.HintOf(err), "postrider setup") {
		t.Errorf("error %v, hint %q", err, operr.HintOf(err))
	}
}
