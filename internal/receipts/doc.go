// Package receipts keeps where events were acknowledged, in postrider.receipt, so that
// an event is found by its id long after its row was purged.
//
//	publisher -> OnDelivered -> Writer.Take -> bounded queue -> COPY, once a second
//
// It is best effort. Nobody waits for it: what does not fit the queue, what the server
// refuses, and what is left when the time to stop is over, is dropped and counted. What is
// kept names an offset that the broker has acknowledged, and nothing else.
package receipts
