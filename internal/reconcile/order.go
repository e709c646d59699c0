package reconcile

// order looks at the order inside each key, by the first record of each event. It knows
// of an order only where the table does: by the aggregate's version; by the time of
// commit, where the server keeps it; by the commands of one transaction. The table does
// not hold the order of commits itself.
type order struct {
	// units are the keys of a topic, by partition and aggregate type: versions count in one aggregate.
	units map[uint64]newest
}

// newest are the furthest events that a unit has had, as indices into the set.
type newest struct{ version, commit, command int32 }

const none = -1

// disorder is an event that stands behind one that it should be before.
type disorder struct{ event, after int32 }

// first takes the first record of an event.
func (o *order) first(c *comparison, i, partition int32) {
	e := c.set.row(i)
	if e.recordKey == 0 {
		return // a null key has no order
	}
	if o.units == nil {
		o.units = map[uint64]newest{}
	}
	unit := e.recordKey ^ uint64(partition+1)*0x9e3779b97f4a7c15 ^ uint64(e.kind+1)*0xc2b2ae3d27d4eb4f
	n, known := o.units[unit]
	if !known {
		n = newest{none, none, none}
	}
	if after := n.before(c, e); after != none {
		c.outOfOrder(disorder{event: i, after: after})
	}
	n.take(c, e, i)
	o.units[unit] = n
}

// before gives an event that came earlier in the topic and is later in the table.
func (n *newest) before(c *comparison, e *entry) int32 {
	if n.version != none && e.version != unknown && e.version < c.set.row(n.version).version {
		return n.version
	}
	if !c.ordered[e.table] {
		return none
	}
	if n.command != none {
		if last := c.set.row(n.command); last.xid == e.xid && e.command < last.command && !c.versionsSay(e, last) {
			return n.command
		}
	}
	if n.commit != none && e.commit != unknown {
		if last := c.set.row(n.commit); e.commit+sameMoment.Microseconds() < last.commit && !c.versionsSay(e, last) {
			return n.commit
		}
	}
	return none
}

// versionsSay: where both have a version, that decides, and has.
func (c *comparison) versionsSay(a, b *entry) bool {
	return a.version != unknown && b.version != unknown
}

func (n *newest) take(c *comparison, e *entry, i int32) {
	if e.version != unknown && (n.version == none || e.version > c.set.row(n.version).version) {
		n.version = i
	}
	if e.commit != unknown && (n.commit == none || e.commit > c.set.row(n.commit).commit) {
		n.commit = i
	}
	if n.command == none || c.set.row(n.command).xid != e.xid || e.command > c.set.row(n.command).command {
		n.command = i
	}
}

func (c *comparison) outOfOrder(d disorder) {
	c.report.OutOfOrder++
	if len(c.report.Findings.OutOfOrder) >= c.o.Examples {
		return
	}
	e, after := c.set.row(d.event), c.set.row(d.after)
	f := c.finding(e)
	f.After = string(c.set.id(after))
	c.report.Findings.OutOfOrder = append(c.report.Findings.OutOfOrder, f)
}
