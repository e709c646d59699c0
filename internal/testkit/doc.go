// Package testkit gives tests their PostgreSQL and Kafka: a fresh database and
// fresh topics on servers that the whole run shares, or a server of their own
// where a test stops, kills or pauses it.
//
//	db := testkit.Postgres(t)              // own database; slots and database go at cleanup
//	broker := testkit.Kafka(t)             // shared broker; own topics
//	topic := broker.NewTopic(t, 12, nil)
//	records := broker.ReadAll(t, topic)    // by another client than Postrider's
//
// `make test` starts the shared servers once (cmd/testservers). A test binary
// that runs without them starts its own at the first call; they end with it.
//
// PostgreSQL creates a slot only when every transaction that was writing has
// ended, in any database. A test that keeps a writing transaction open for long
// holds up all others: it belongs on PrivatePostgres.
package testkit
