package debezium

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The report names the versions that pom.xml brings.
func TestVersionsAreThePOMs(t *testing.T) {
	t.Parallel()
	for _, version := range []string{Version, ConnectVersion} {
		if !strings.Contains(string(pom), "<version>"+version+"</version>") {
			t.Errorf("pom.xml does not have %s", version)
		}
	}
}

// The two variants differ in what TunedText names, and in nothing else; both start at the slot's position and keep the
// payload's text.
func TestVariants(t *testing.T) {
	t.Parallel()
	o := Options{Dir: t.TempDir(), Slot: "s", Publication: "p", Table: "public.outbox", Topic: "events", Brokers: []string{"a:1", "b:2"}}
	plain := o.Connector()
	o.Tuned = true
	both := o.Connector()
	for key, value := range both {
		if plain[key] != value && !strings.Contains(TunedText(), key+"="+value) {
			t.Errorf("%s=%s is not named as tuned", key, value)
		}
	}
	for key, want := range map[string]string{
		"slot.name": "s", "publication.name": "p", "publication.autocreate.mode": "disabled", "snapshot.mode": "no_data",
		"transforms.outbox.table.expand.json.payload": "false", "transforms.outbox.route.topic.replacement": "events",
	} {
		if plain[key] != want || both[key] != want {
			t.Errorf("%s is %q and %q, want %q", key, plain[key], both[key], want)
		}
	}
	if got := o.Worker()["bootstrap.servers"]; got != "a:1,b:2" {
		t.Errorf("bootstrap.servers is %q", got)
	}
}

// A worker finds its files, and none of them can be read by others: the database's password is in one.
func TestWrite(t *testing.T) {
	t.Parallel()
	o := Options{Dir: t.TempDir(), Password: `a\b`}
	args, err := Write(o, "/jars")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(args, " "), "-cp /jars/* org.apache.kafka.connect.cli.ConnectStandalone "+o.Dir) {
		t.Errorf("arguments %q", args)
	}
	path := filepath.Join(o.Dir, "connector.properties")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), `database.password=a\\b`+"\n") {
		t.Errorf("the password is not escaped:\n%s", text)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("connector.properties has mode %v", info.Mode())
	}
}
