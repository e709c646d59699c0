package shadow

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/postrider/postrider/router"
)

// matcher says which event a record is of.
type matcher struct {
	headers []string // names of the id's header; empty: by content
	// With the content, the first event goes with the first record that has it, and so on.
	ours, theirs map[[16]byte]int
}

func newMatcher(o Options, cfg router.Config) matcher {
	if o.Match == MatchContent {
		return matcher{ours: map[[16]byte]int{}, theirs: map[[16]byte]int{}}
	}
	if o.IDHeader != "" {
		return matcher{headers: []string{o.IDHeader}}
	}
	var names []string
	for i := range cfg.Sources {
		name := cfg.Sources[i].Mapping.EventIDHeader
		if name == "" {
			name = "id"
		}
		if name != router.Disabled && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return matcher{headers: names}
}

// event gives the id under which an event waits.
func (m *matcher) event(id []byte, r *record) string {
	if m.ours == nil {
		return string(id)
	}
	return number(m.ours, r)
}

// record gives the id of a record's event; false where it has none.
func (m *matcher) record(r *record) (string, bool) {
	if m.theirs != nil {
		return number(m.theirs, r), true
	}
	for _, name := range m.headers {
		if h := find(r.headers, name); h != nil && len(h.Value) > 0 {
			return string(h.Value), true
		}
	}
	return "", false
}

func (m *matcher) headerNames() string { return strings.Join(m.headers, " or ") }

func number(seen map[[16]byte]int, r *record) string {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(r.key)))
	sum := sha256.Sum256(slices.Concat(length[:], r.key, r.value))
	id := [16]byte(sum[:16])
	seen[id]++
	return fmt.Sprintf("%x#%d", id, seen[id])
}
