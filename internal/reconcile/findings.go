package reconcile

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/topic"
)

// finding describes a row of the pass.
func (c *comparison) finding(e *entry) Finding { return c.findingOf(e, string(c.set.id(e))) }

func (c *comparison) findingOf(e *entry, id string) Finding {
	f := Finding{EventID: id, Table: c.set.tables.list[e.table], Topic: c.set.topics.list[e.topic]}
	if e.found() {
		partition, offset := e.partition, e.offset
		f.Partition, f.Offset = &partition, &offset
	}
	if e.at != unknown {
		at := time.UnixMilli(e.at).UTC()
		f.Time = &at
	}
	return f
}

// differentHeaders reads row and record again, for the names of the headers that differ.
func (c *comparison) differentHeaders(ctx context.Context, f *Finding) (list []string, err error) {
	found, err := c.reader.Find(ctx, f.EventID)
	if err != nil || found == nil {
		return []string{"headers"}, err
	}
	err = c.recordAt(ctx, f.Topic, *f.Partition, *f.Offset, func(rec *topic.Record) {
		list = compareHeaders(found.Message.Headers, rec.Headers)
	})
	if len(list) == 0 {
		list = []string{"headers"}
	}
	return list, err
}

// compareHeaders names headers that are on one side only, or otherwise, our marks left out.
func compareHeaders(want, got []event.Header) (list []string) {
	unmarked := func(headers []event.Header) []event.Header {
		return slices.DeleteFunc(slices.Clone(headers), func(h event.Header) bool { return isMark(h.Name) })
	}
	want, got = unmarked(want), unmarked(got)
	if slices.EqualFunc(want, got, func(a, b event.Header) bool { return a.Name == b.Name && same(a.Value, b.Value) }) {
		return nil
	}
	values := func(headers []event.Header, name string) (v [][]byte) {
		for i := range headers {
			if headers[i].Name == name {
				v = append(v, headers[i].Value)
			}
		}
		return v
	}
	for _, h := range slices.Concat(want, got) {
		word := "header " + h.Name
		if !slices.Contains(list, word) && !slices.EqualFunc(values(want, h.Name), values(got, h.Name), same) {
			list = append(list, word)
		}
	}
	if len(list) == 0 {
		list = append(list, "headers' order")
	}
	return list
}

// same tells null and empty apart.
func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// orderBy says by what events of a key are known to be out of order.
func (c *comparison) orderBy() string {
	var by []string
	for i := range c.cfg.Router.Sources {
		if c.cfg.Router.Sources[i].Mapping.AggregateVersion != "" {
			by = append(by, "aggregate version")
			break
		}
	}
	ordered := false
	for _, ok := range c.ordered {
		ordered = ordered || ok
	}
	if ordered {
		if c.reader.KnowsCommits() {
			by = append(by, "time of commit")
		}
		by = append(by, "commands of a transaction")
	}
	if len(by) == 0 {
		return "nothing: no aggregate version is mapped, and rows were updated since"
	}
	return strings.Join(by, ", ")
}
