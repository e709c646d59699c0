package eventrouter

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/postrider/postrider/router"
)

// Every option of Event Router becomes an option of ours or a note.
func TestTranslate(t *testing.T) {
	t.Parallel()
	got, notes, err := Translate("s", "t", map[string]string{
		optEventID: "eid", optEventKey: "agg", optEventType: "kind", optPayload: "body", optTimestamp: "at",
		optSchema: "ver", optPlacement: "kind:header:eventType, x:header,p:partition,e:envelope:E", optMissing: "ignore",
		optRouteBy: "kind", optRegex: "(.*)", optReplacement: "x.$1", optTombstone: "true", optInvalidOp: "fatal",
		optExpand: "true", optNullJSON: "optional_bytes", optEmptyArray: "ignore",
		optTraceField: "span", optTraceOp: "op", optTraceOnly: "true", "type": "io.debezium.transforms.outbox.EventRouter", "tabel": "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := router.Source{
		Schema: "s", Table: "t",
		Mapping: router.Mapping{
			EventID: "eid", Key: "agg", Payload: "body", AggregateType: "kind", EventTypeHeader: router.Disabled,
			EmptyKey: router.EmptyKeyAllow, NullPayload: router.NullPayloadTombstone, BlankPayload: router.BlankPayloadTombstone,
			Timestamp: router.Timestamp{Column: "at"}, Partition: "p",
			Headers: []router.Field{
				{Column: "kind", Name: "eventType", Format: router.FormatDebezium}, {Column: "x", Format: router.FormatDebezium},
			},
			Envelope:  &router.Envelope{Mode: router.EnvelopeDebezium, Fields: []router.Field{{Column: "e", Name: "E"}}},
			OnMissing: router.OnMissingIgnore, OnNoMatch: router.OnNoMatchRaw,
		},
		Routes: []router.Route{{Regex: "(.*)", Replacement: "x.$1"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("source is\n%+v, want\n%+v", got, want)
	}
	if _, err := router.New(router.Config{Sources: []router.Source{got}}); err != nil {
		t.Error(err)
	}
	kinds := map[string]Kind{}
	for _, n := range notes {
		if n.Text == "" {
			t.Errorf("note %+v says nothing", n)
		}
		kinds[n.Option] = n.Kind
	}
	wantKinds := map[string]Kind{
		optEventType: NoEffect, optTimestamp: Different, optSchema: NoEffect, optPlacement: Different, optRegex: Different,
		optInvalidOp: Unsupported, optExpand: Unsupported, optNullJSON: Unsupported, optEmptyArray: Unsupported,
		optTraceField: Unsupported, optTraceOp: Unsupported, optTraceOnly: Unsupported, "type": NoEffect, "tabel": Unsupported,
	}
	if !reflect.DeepEqual(kinds, wantKinds) {
		t.Errorf("notes are %v, want %v", kinds, wantKinds)
	}
}

// No options at all is Event Router's default layout.
func TestDefaults(t *testing.T) {
	t.Parallel()
	got, notes, err := Translate("public", "outboxevent", nil)
	if err != nil || len(notes) != 0 {
		t.Fatalf("%v %v", notes, err)
	}
	m := got.Mapping
	if m.EventID != "id" || m.Key != "aggregateid" || m.Payload != "payload" || m.AggregateType != "aggregatetype" ||
		m.NullPayload != router.NullPayloadNull || m.OnMissing != router.OnMissingError || got.Routes[0].Topic != router.DefaultTopic {
		t.Errorf("source is %+v", got)
	}
}

// The option for missing columns had another name until 3.6.
func TestOldMissingOption(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]router.OnMissing{"true": router.OnMissingError, "false": router.OnMissingIgnore} {
		got, _, err := Translate("s", "t", map[string]string{optMissingOld: value})
		if err != nil || got.Mapping.OnMissing != want {
			t.Errorf("%s: %s %v", value, got.Mapping.OnMissing, err)
		}
	}
}

// Values that Event Router refuses, or finds only at the first row, are errors.
func TestBadValues(t *testing.T) {
	t.Parallel()
	for option, value := range map[string]string{
		optPlacement: "a:b:c:d,x,c:footer", optMissing: "maybe", optMissingOld: "maybe", optTombstone: "yes", optInvalidOp: "x", optExpand: "x",
	} {
		if _, _, err := Translate("s", "t", map[string]string{option: value}); err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("%s: %v", option, err)
		}
	}
}

// The page for people who move over names every option and every reason.
func TestPageIsComplete(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/event-router.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, option := range []string{
		optEventID, optEventKey, optEventType, optPayload, optTimestamp, optSchema, optPlacement, optMissing, optMissingOld,
		optRouteBy, optRegex, optReplacement, optTombstone, optInvalidOp, optExpand, optNullJSON, optEmptyArray,
		optTraceField, optTraceOp, optTraceOnly,
	} {
		if !strings.Contains(string(page), "`"+option+"`") {
			t.Errorf("the page does not name %s", option)
		}
	}
}
