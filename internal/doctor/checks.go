package doctor

import "context"

// check is one precondition.
type check struct {
	name string
	// asks is a short question, for the help.
	asks string
	ask  func(context.Context, *exam) []answer
}

// checks are in the order of a report: a server that does not serve comes before what
// follows from it.
var checks = []check{
	{"postgres", "does the server answer, and is it no pooler?", checkPostgres},
	{"postgres_tls", "is the connection encrypted, and how long does the certificate last?", checkPostgresTLS},
	{"server", "is it new enough, and a primary?", checkServer},
	{"wal_level", "is it logical?", checkWALLevel},
	{"max_replication_slots", "is there room for the slot?", checkMaxSlots},
	{"max_wal_senders", "is a walsender free?", checkMaxWALSenders},
	{"wal_sender_timeout", "is a relay that is gone noticed, and one that is there kept?", checkWALSenderTimeout},
	{"max_slot_wal_keep_size", "is the WAL that the slot holds back bounded, and not too tightly?", checkKeepSize},
	{"idle_replication_slot_timeout", "may a stopped relay lose its slot? (18)", checkIdleTimeout},
	{"role", "may it stream, and is it no superuser?", checkRole},
	{"grants", "has it the rights that it needs on our tables and on the outbox?", checkGrants},
	{"schema", "are all migrations applied?", checkSchema},
	{"publication", "does it exist, and publish the inserts of each table?", checkPublication},
	{"row_filter", "do the filters let every event through to somebody?", checkRowFilter},
	{"replica_identity", "do published updates and deletes make such statements fail?", checkReplicaIdentity},
	{"mapping", "do the columns exist, with types that fit, and would the rows be published?", checkMapping},
	{"slot", "does it exist, is it ours to use, does it still have its WAL?", checkSlot},
	{"wal_held", "how much WAL does the slot hold back?", checkWALHeld},
	{"disk", "is there room for it? (where the server is on this machine)", checkDisk},
	{"checkpoint", "would run accept the stored position?", checkCheckpoint},
	{"failover", "does the slot survive a promotion? (17)", checkFailover},
	{"clock", "do the database's clock and this machine's agree?", checkClock},
	{"brokers", "does every address answer, bootstrap and advertised?", checkBrokers},
	{"kafka_tls", "are connections encrypted, and how long do the certificates last?", checkKafkaTLS},
	{"kafka_rights", "may the user produce, and see what it needs to?", checkKafkaRights},
	{"topics", "do they exist, with a leader for each partition?", checkTopics},
	{"min_insync_replicas", "are acknowledged events on more than one broker?", checkDurability},
	{"retention", "do topics keep events over the longest outage?", checkRetention},
	{"message_size", "do topics take the largest rows?", checkMessageSize},
	{"kafka_clock", "do the brokers' clock and the database's agree?", checkKafkaClock},
}
