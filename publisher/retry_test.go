package publisher

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

// case C37: no kind of outage is ever taken for a poison event. The table runs
// over all kinds of error that kafka-go has.
func TestJudgeErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  error
		want verdict
	}{
		{"none", nil, acked},
		{"kafka.Error 3", kafka.UnknownTopicOrPartition, retryLeader},
		{"kafka.Error wrapped", fmt.Errorf("x: %w", kafka.NotLeaderForPartition), retryLeader},
		{"WriteErrors, one transient", kafka.WriteErrors{nil, kafka.NotEnoughReplicas}, retry},
		{"WriteErrors, one refused", kafka.WriteErrors{nil, kafka.InvalidRecord}, refused},
		{"WriteErrors, empty", kafka.WriteErrors{nil, nil}, acked},
		{"MessageTooLargeError", kafka.MessageTooLargeError{}, refused},
		{"TopicError", protocol.NewErrNoTopic("t"), retryLeader},
		{"TopicPartitionError, no partition", protocol.NewErrNoPartition("t", 1), retryLeader},
		{"TopicPartitionError, no leader", protocol.NewErrNoLeader("t", 1), retryLeader},
		{"net.OpError refused", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, retry},
		{"net.OpError reset", &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, retry},
		{"net.DNSError", &net.DNSError{Err: "no such host", Name: "b", IsNotFound: true}, retry},
		{"deadline", context.DeadlineExceeded, retry},
		{"cancelled", context.Canceled, retry},
		{"io timeout", os.ErrDeadlineExceeded, retry},
		{"EOF", io.EOF, retry},
		{"unexpected EOF", fmt.Errorf("%w: broker appears to be expecting TLS", io.ErrUnexpectedEOF), retry},
		{"closed pipe", io.ErrClosedPipe, retry},
		{"closed connection", net.ErrClosed, retry},
		{"x509 authority", x509.UnknownAuthorityError{}, retry},
		{"x509 host", x509.HostnameError{Certificate: &x509.Certificate{}, Host: "b"}, retry},
		{"x509 expired", x509.CertificateInvalidError{Reason: x509.Expired, Cert: &x509.Certificate{}}, retry},
		{"tls record", tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, retry},
		{"tls alert", tls.AlertError(42), retry},
		{"tls verification", &tls.CertificateVerificationError{Err: errors.New("x")}, retry},
		{"own error around EOF", &operr.Error{Op: "ask", Err: io.EOF}, retry},
		{"SASL failed", fmt.Errorf("x: %w", kafka.SASLAuthenticationFailed), unauthorized},
		{"protocol error", protocol.Error("correlation id mismatch"), alarming},
		{"anything else", errors.New("who knows"), alarming},
	} {
		if got := judgeError(c.err); got.verdict != c.want {
			t.Errorf("%s: %s, want %s", c.name, got.verdict, c.want)
		}
	}
}

// case C37 (e), rules 12, 14, 15: every code that kafka-go knows, and some that it does not.
func TestJudgeCodes(t *testing.T) {
	t.Parallel()
	want := map[verdict][]kafka.Error{
		acked:        {0, 46},
		retryLeader:  {3, 5, 6, 9, 56, 72, 74, 75, 80, 83, 100, 103},
		retry:        {2, 7, 8, 11, 13, 14, 15, 16, 19, 20, 41, 51, 77, 78, 89},
		unauthorized: {29, 30, 31, 33, 34, 53, 54, 58, 65, 66},
		identityLost: {45, 47, 59},
		refused:      {10, 17, 18, 32, 87},
		fatal:        {43, 48, 49, 52, 76, 90},
	}
	listed := map[kafka.Error]verdict{}
	for v, codes := range want {
		for _, c := range codes {
			listed[c] = v
		}
	}
	for code := kafka.Error(-1); code < 130; code++ {
		v, ok := listed[code]
		if !ok {
			v = alarming // retried with an alarm; never refuses an event
		}
		if got := judgeCode(code); got.verdict != v {
			t.Errorf("code %d: %s, want %s", code, got.verdict, v)
		}
	}
	for code, reason := range map[kafka.Error]event.Reason{
		10: event.ReasonTooLarge, 18: event.ReasonTooLarge, 87: event.ReasonInvalidRecord,
		32: event.ReasonTimestamp, 17: event.ReasonInvalidTopic,
	} {
		if got := judgeCode(code).reason; got != reason {
			t.Errorf("code %d: reason %s, want %s", code, got, reason)
		}
	}
	// What may have been appended forbids a split (rule 14) and is a possible duplicate after a new epoch (rule 15).
	for code := kafka.Error(-1); code < 130; code++ {
		j := judgeCode(code)
		if sure := map[kafka.Error]bool{0: true, 46: true, 2: true, 14: true, 15: true, 16: true, 19: true, 51: true, 89: true}[code]; sure ||
			j.verdict == refused || j.verdict == identityLost || j.verdict == unauthorized || j.verdict == fatal {
			if j.appended {
				t.Errorf("code %d: counts as perhaps appended", code)
			}
		} else if !j.appended {
			t.Errorf("code %d: counts as not appended", code)
		}
	}
}

// trap 19: capped, with jitter.
func TestBackoff(t *testing.T) {
	t.Parallel()
	const first, most = 20 * time.Millisecond, 2 * time.Second
	for n := 1; n < 200; n++ {
		full := most
		if n < 8 {
			full = min(most, first<<(n-1))
		}
		for range 20 {
			if d := backoff(n, first, most); d < full/2 || d > full {
				t.Fatalf("failure %d: %s, want %s to %s", n, d, full/2, full)
			}
		}
	}
}

func TestGrace(t *testing.T) {
	t.Parallel()
	var g grace
	now := time.Now()
	if g.exceeded(now, time.Minute) || g.exceeded(now.Add(59*time.Second), time.Minute) {
		t.Fatal("exceeded too early")
	}
	if !g.exceeded(now.Add(time.Minute), time.Minute) {
		t.Fatal("not exceeded after the grace time")
	}
	g.clear()
	if g.exceeded(now.Add(2*time.Minute), time.Minute) {
		t.Fatal("a success between starts it anew")
	}
}
