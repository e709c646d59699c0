// Package publisher publishes messages to Kafka in order per partition:
// idempotent, acks=all, one batch in flight per partition, re-sent unchanged
// until it is acknowledged or refused for good.
//
// # The path of a message
//
//	Append -> topic -> lane's open batch -> sender of the leader -> broker
//	                        ^                     |
//	                        +---- same bytes <----+ any error that is not a verdict over a record
//
// A lane is one partition. A sender is one broker; it puts all lanes that are
// ready into one request. Append copies the message in the caller's goroutine;
// there is no channel per event. A lane that is idle sends when Flush says that the
// input is used up, or when its batch is full; while a batch is in flight the next
// one collects. There is no linger.
//
// A topic that does not exist yet holds its messages back until it does; other
// topics flow until the window is full.
//
// # Lock order
//
// topic.mu, lane.mu, sender.mu. None is held over I/O or a callback. The window,
// the gate, the alarms and the control connections have innermost locks of their own.
//
// # What is retried, what is refused, what is fatal
//
// retry.go alone decides. A record that can never be published stops its lane:
// what precedes it is acknowledged first, then OnRefused is called; what is behind
// it in that lane is not sent.
//
// # Metrics
//
// All begin with postrider_publisher_:
//
//	acknowledged_batches_total
//	acknowledged_events_total{topic}
//	alarm{kind}
//	awaited_topic{topic}
//	batch_bytes
//	batch_events
//	connections
//	epoch_bumps_total
//	lanes
//	log_resets_total
//	metadata_refreshes_total{result}
//	partition_changes_total{topic,action}
//	pending_events
//	possible_duplicates_total
//	refused_events_total{reason}
//	request_seconds
//	requests_total
//	retries_total{cause}
//	stopped_lanes
//	throttled_seconds_total
//	window_bytes
//	window_limit_bytes
package publisher
