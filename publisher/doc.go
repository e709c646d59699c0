// Package publisher publishes messages to Kafka, in order per partition.
package publisher
