package replication

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/postrider/postrider/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds waiting for what must come.
const patience = 20 * time.Second

// recorder is a Handler that writes down what it is told, one line each.
type recorder struct {
	mu      sync.Mutex // covers the fields below
	lines   []string
	rows    []map[string]string // by column; NULL is absent
	ends    []event.LSN
	walEnds []event.LSN
	ignored map[string]int
	drained int
	// drainedAt is how many commits there were when the input was last used up.
	drainedAt int
	news      chan struct{}

	// onInsert and onKeepAlive run without the lock, after recording.
	onInsert    func(*event.Row) error
	onKeepAlive func(event.LSN)
	onCommit    func(end event.LSN)
}

func newRecorder() *recorder {
	return &recorder{ignored: map[string]int{}, news: make(chan struct{}, 1)}
}

func (r *recorder) note(format string, args ...any) {
	r.mu.Lock()
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
	r.mu.Unlock()
	r.tell()
}

func (r *recorder) tell() {
	select {
	case r.news <- struct{}{}:
	default:
	}
}

func (r *recorder) Relation(rel *event.Relation) error {
	var columns []string
	for _, c := range rel.Columns {
		columns = append(columns, c.Name)
	}
	r.note("relation %s(%s)", rel, strings.Join(columns, ","))
	return nil
}

func (r *recorder) Begin(commit event.LSN, _ time.Time, _ uint32) error {
	r.note("begin %s", commit)
	return nil
}

func (r *recorder) Insert(row *event.Row) error {
	values := map[string]string{}
	var line []string
	for i, v := range row.Values {
		name := row.Relation.Columns[i].Name
		if v.Kind == event.Null {
			line = append(line, name+" is null")
			continue
		}
		values[name] = string(v.Data)
		line = append(line, name+"="+string(v.Data))
	}
	r.mu.Lock()
	r.rows = append(r.rows, values)
	r.mu.Unlock()
	r.note("insert %d %s: %s", row.Position.Index, row.Relation.Name, strings.Join(line, " "))
	if r.onInsert != nil {
		return r.onInsert(row)
	}
	return nil
}

func (r *recorder) Ignored(op string) {
	r.mu.Lock()
	r.ignored[op]++
	r.mu.Unlock()
	r.tell()
}

func (r *recorder) Commit(commit, end event.LSN, _ time.Time) error {
	r.mu.Lock()
	r.ends = append(r.ends, end)
	r.mu.Unlock()
	r.note("commit %s end %s", commit, end)
	if r.onCommit != nil {
		r.onCommit(end)
	}
	return nil
}

func (r *recorder) KeepAlive(walEnd event.LSN) {
	r.mu.Lock()
	r.walEnds = append(r.walEnds, walEnd)
	r.mu.Unlock()
	r.tell()
	if r.onKeepAlive != nil {
		r.onKeepAlive(walEnd)
	}
}

func (r *recorder) InputDrained() {
	r.mu.Lock()
	r.drained++
	r.drainedAt = len(r.ends)
	r.mu.Unlock()
	r.tell()
}

// until waits for a condition on what was recorded; check runs under the lock.
func (r *recorder) until(t *testing.T, what string, check func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		r.mu.Lock()
		ok := check()
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-r.news:
		case <-deadline:
			r.mu.Lock()
			defer r.mu.Unlock()
			t.Fatalf("no %s; so far:\n%s", what, strings.Join(r.lines, "\n"))
		}
	}
}

// rowsOf waits for n rows.
func (r *recorder) rowsOf(t *testing.T, n int) []map[string]string {
	t.Helper()
	r.until(t, fmt.Sprintf("%d rows", n), func() bool { return len(r.rows) >= n })
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]map[string]string(nil), r.rows...)
}

// within gives a context that ends with the test's patience.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// await takes one value.
func await[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v, ok := <-ch:
		if !ok {
			t.Fatalf("channel closed while waiting for %s", what)
		}
		return v
	case <-time.After(patience):
		t.Fatalf("no %s within %s", what, patience)
	}
	panic("unreachable")
}

func wantErr(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got error %v, want %v", err, target)
	}
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// log gives the lines so far.
func (r *recorder) log() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.lines...)
}

// commits waits for n transactions and gives their end LSNs.
func (r *recorder) commits(t *testing.T, n int) []event.LSN {
	t.Helper()
	r.until(t, fmt.Sprintf("%d commits", n), func() bool { return len(r.ends) >= n })
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]event.LSN(nil), r.ends...)
}
