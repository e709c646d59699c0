// Package devstack runs real servers for the demo and the tests on a machine
// without Docker: PostgreSQL from the machine's own binaries or fetched ones,
// Kafka from its own jars, and kfake where there is no Java.
//
// Everything listens on 127.0.0.1 at free ports and lives in a temporary
// folder. A server that this package starts does not outlive the process that
// started it, whatever ends that process, and its folder goes with it.
package devstack
