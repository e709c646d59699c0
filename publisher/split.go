package publisher

import "fmt"

// split makes two batches of one: the first `at` records and the rest. It is
// how the guilty record of a refused batch is found. The original is left to the
// caller. Only a batch of which no attempt can have been appended is split: the
// broker's checks of size and content come before its check for duplicates, so a
// part that is sent again would be a duplicate that it cannot see (rule 14).
func (b *batch) split(at int32) (first, rest *batch, err error) {
	if at <= 0 || at >= b.count {
		return nil, nil, fmt.Errorf("split batch of %d records at %d", b.count, at)
	}
	records, owned, err := b.plainRecords()
	if err != nil {
		return nil, nil, err
	}
	if owned {
		defer records.reset()
	}
	first, rest = newBatch(), newBatch()
	recs, meta := cursor{buf: records}, cursor{buf: &b.meta}
	for i := range b.count {
		r, err := readRecord(&recs)
		if err != nil {
			return nil, nil, err
		}
		m, err := readMeta(&meta)
		if err != nil {
			return nil, nil, err
		}
		part := first
		if i >= at {
			part = rest
		}
		part.addRaw(r, b.baseTimestamp+r.timestampDelta, m)
	}
	for _, part := range []*batch{first, rest} {
		part.sealed = true
		part.reserved = part.capacity()
	}
	return first, rest, nil
}

// splitPoint chooses where to split a refused batch of at least two records.
// The broker's record errors (Produce v8) name the guilty ones: the first of them
// is isolated, so that it is sent alone and judged by itself. Without them the
// batch is halved.
func splitPoint(count int32, guilty []int32) int32 {
	first := count
	for _, g := range guilty {
		if g >= 0 && g < first {
			first = g
		}
	}
	switch {
	case first == count:
		return count / 2
	case first == 0:
		return 1
	}
	return first
}
