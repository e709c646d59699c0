package reconcile

import (
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// case C41: trace tells the truth about an event, wherever it is.
func TestTraceSaysWhereAnEventIs(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Kafka(t), nil)
	f.insert(0, 40)
	list := f.records("true")
	for n, rec := range list {
		switch n {
		case 10, 11, 12: // missing, parked, discarded
			continue
		case 13:
			rec = again(rec)
			rec.Value = []byte("{}")
		case 14:
			rec = again(rec)
			rec.Key = []byte("elsewhere-1") // most likely in another partition
		}
		f.produce(rec)
	}
	f.produce(again(list[15]), again(list[16], markReplayed))
	f.park("e11", f.topic, "parked")
	f.park("e12", f.topic, "discarded")
	f.cover()
	f.insert(40, 41)
	f.exec(`DELETE FROM outbox WHERE id = 'e17'`)

	for id, want := range map[string]struct {
		state   Where
		records int
		code    int
	}{
		"e0": {Published, 1, 0}, "e15": {Published, 2, 0}, "e16": {Published, 2, 0}, "e10": {Missing, 0, 8}, "e11": {IsParked, 0, 0},
		"e12": {IsDiscarded, 0, 0}, "e13": {Different, 1, 8}, "e14": {Different, 1, 8}, "e40": {Waiting, 0, 0}, "e17": {OnlyInTopic, 1, 0},
		"e99": {Nowhere, 0, 8},
	} {
		tr, err := Trace(f.ctx(), f.cfg, id, nil)
		if err != nil {
			t.Fatal(err)
		}
		code := 0
		if err := tr.Error(); err != nil {
			code = operr.ClassOf(err).ExitCode()
		}
		if tr.State != want.state || len(tr.Records) != want.records || code != want.code || tr.Words == "" {
			t.Errorf("%s: %s (%s), %d records, code %d; want %+v; searched %q", id, tr.State, tr.Words, len(tr.Records), code, want, tr.Searched)
		}
		if len(tr.Searched) == 0 {
			t.Errorf("%s: nothing was searched", id)
		}
	}

	tr, err := Trace(f.ctx(), f.cfg, "e0", nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.Searched) != 1 || !strings.Contains(tr.Searched[0], ", partition ") {
		t.Errorf("more than the partition of the key was searched: %q", tr.Searched)
	}
	if tr.Row == nil || tr.Row.Table != "public.outbox" || tr.Row.XID == 0 || tr.Covered == nil || !*tr.Covered || tr.Stored == nil {
		t.Errorf("trail %+v, row %+v", tr, tr.Row)
	}
	if tr, _ = Trace(f.ctx(), f.cfg, "e13", nil); len(tr.Records) != 1 || strings.Join(tr.Records[0].Differs, " ") != "value" {
		t.Errorf("e13: %+v", tr.Records)
	}
	if tr, _ = Trace(f.ctx(), f.cfg, "e16", nil); len(tr.Records) != 2 || strings.Join(tr.Records[1].Marks, " ") != markReplayed+": 7" {
		t.Errorf("e16: %+v", tr.Records)
	}
}
