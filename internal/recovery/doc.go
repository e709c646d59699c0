// Package recovery brings table, topics and position together again after the slot was
// lost, dropped, recreated, advanced or not failed over, or after the database was
// restored from a backup or moved. `run` refuses then; `postrider recover` shows what is
// true, and heals.
//
// # Which events may be missing
//
// The row of the checkpoint holds a ticked-off snapshot S: every row of the outbox that S
// sees is published or parked (rule 4). So the candidates are the rows that S does not
// cover, whatever their ids and times are: a transaction that commits late is among them
// (trap 28). S counts only in the history in which it was taken: checkpoint.Row.TickedOff
// says whether it does. Where it does not (the database was loaded elsewhere, or the row
// lies past the fork of a promotion), every row of the table is a candidate.
//
// Candidates that stand in postrider.parked are settled, and so are those that their topic
// holds, found by event id (and compared by key and value, see below). What is left is
// missing, and published.
//
// # How stream and table meet
//
// Where the slot cannot be used, a new one is made under its name, and the table is read at
// the snapshot that the slot's creation exports: what that snapshot sees is the table's
// job, all else comes on the stream. The list of candidates is made inside the snapshot,
// not later by its text: a row that is updated meanwhile carries another transaction's id
// and could not be told from one that comes on the stream, which brings inserts only.
//
// Where the slot can be used (somebody advanced it, or made it anew under its name), it is
// kept. Dropping it would give up the WAL from its position on, and with it events whose
// rows were deleted since: outboxes that delete a row as soon as it is written are usual,
// and the WAL is the only place that has their events. A snapshot is taken, the WAL's end W
// after it, and a copy of the slot is read up to W: candidates that come on the stream are
// the stream's job. What the snapshot sees was committed before W; so a row of it that did
// not come lies before the slot.
//
// # Same id, other content
//
// Where a database went back in time, its sequences did, too: a new event may carry the id
// of one that only the topic has. Settled by id alone it would be lost in silence. So key
// and value are compared as well; a difference is a conflict, and a person decides
// (Options.Conflicts): the same event under a changed mapping is settled, another event
// under a used id is published.
//
// # What a topic cannot tell
//
// Where a topic's retention has passed a candidate's time, that it is not found there
// proves nothing. Such a candidate is expired, and a person decides (Options.Expired).
//
// # Where a topic is read from
//
// A record that was made of a candidate has the candidate's mapped timestamp, so that the
// first offset with at least the lowest of them is not behind it: exact, without a margin,
// where the topic keeps the producer's times. Where it stamps its own, they are later than
// the commit, but by another clock: so an hour is taken off, which is also the most that a
// broker allows a producer's clock to be ahead (rule 19). Where no timestamp is mapped the
// time of a row cannot be trusted (an update or a load gives it another one), and the topic
// is read from its beginning; Options.ScanFrom shortens that.
//
// # Steps and crash windows
//
// Each step is durable before the next begins, and each may be cut off at any place:
//
//  1. The task (postrider.task, kind recover, running) with what was found. From here on
//     `run` refuses.
//  2. The vantage: the old slot is dropped, the new one made, the list written to
//     postrider.task_item at its snapshot, and slot and snapshot to the task. A slot that is
//     there and not in the task, or not where the task has it, is not trusted: the list is
//     thrown away and all is made anew.
//  3. The comparison. Its outcome is one transaction: what is settled leaves the list.
//  4. Publishing, in order, marked postrider-recovered, from where the task stands. What
//     was acknowledged and not yet saved is published again: a rewind, no leapfrog.
//  5. What was refused, and what waits behind it or behind an event that was parked
//     before, is parked behind the slot's position, in order.
//  6. One transaction: the row of the checkpoint (slot, system, timeline, position,
//     snapshot) and the end of the task, and only while the slot stands where the task has
//     it and nobody holds it.
//
// # What it cannot know
//
// Events whose rows were deleted (other than on a slot that is kept); the order of commits,
// where the server does not keep their times; whether a topic was emptied or recreated;
// events that went to topics which the present routes do not give.
package recovery
