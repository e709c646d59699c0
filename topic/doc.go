// Package topic reads Kafka topics for the commands that compare: what a consumer with
// isolation.level=read_committed would get, no more. Control batches, records of aborted
// transactions and whatever lies behind an open transaction are left out (rule 17: kafka-go's
// reader hands them out).
//
// A scan goes through the partitions one after another, each in offset order. It holds two
// answers of a broker (4 MiB each, or one batch where that is larger) and one decompressed
// batch, whatever the topic's size.
package topic
