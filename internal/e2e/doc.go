// Package e2e holds the tests that run the whole relay between real servers: in
// process where a test needs short timers or a proxy, and as the built binary where
// it is killed. One file a subject; the field cases (case CNN), traps and rules that
// a test proves are named in its comment.
package e2e
