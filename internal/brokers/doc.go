// Package brokers connects to Kafka brokers: TCP, TLS, the versions both sides speak,
// SASL, and one request at a time on a connection, each with a deadline (rule 13). Why it
// exists beside kafka-go's own transport: docs/decisions/0001-own-transport.md. What is
// asked, and what an answer means, is the caller's.
package brokers
