package publisher

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/postrider/postrider/event"
)

// This file is the only place that decides what an error means. Everything
// else asks judgeCode or judgeError.

// verdict is what to do about an answer.
type verdict int

const (
	// acked: the batch is in the log of all in-sync replicas.
	acked verdict = iota
	// retry: the same bytes again, for ever, with back-off.
	retry
	// retryLeader: as retry, and ask for the leaders at once.
	retryLeader
	// unauthorized: as retry, with an alarm; fatal when it lasts longer than the grace time.
	unauthorized
	// identityLost: the broker's idea of the producer differs; rule 15 decides.
	identityLost
	// refused: permanent for at least one record of the batch: find it.
	refused
	// alarming: nobody lists it here. It is retried with an alarm and never refuses an event.
	alarming
	// fatal: no retry can help and no record is to blame.
	fatal
)

func (v verdict) String() string {
	return [...]string{"acked", "retry", "leader", "unauthorized", "identity", "refused", "unlisted", "fatal"}[v]
}

// judgement is a verdict and what follows from the error besides.
type judgement struct {
	verdict verdict
	// appended: the batch may be in the log all the same, now or later.
	appended bool
	// slow: the partition waits for its replicas; it travels alone (rule 14).
	slow bool
	// reason of a refused record.
	reason event.Reason
}

// judgeCode judges the error code of a partition (or topic) in an answer.
func judgeCode(code kafka.Error) judgement {
	switch code {
	case 0:
		return judgement{verdict: acked}
	case kafka.DuplicateSequenceNumber:
		// The broker has it already: an earlier answer was lost.
		return judgement{verdict: acked}

	case kafka.UnknownTopicOrPartition, kafka.NotLeaderForPartition, kafka.LeaderNotAvailable:
		// A leader that moves while the batch waits for its replicas answers so after the append.
		return judgement{verdict: retryLeader, appended: true}
	case kafka.FencedLeaderEpoch, kafka.UnknownLeaderEpoch, kafka.ReplicaNotAvailable, kafka.ListenerNotFound,
		kafka.UnknownTopicID, kafka.InconsistentTopicID, kafka.KafkaStorageError, kafka.PreferredLeaderNotAvailable,
		kafka.EligibleLeadersNotAvailable:
		// The same kind: another broker will serve the partition, or this one later.
		return judgement{verdict: retryLeader, appended: true}

	case kafka.RequestTimedOut:
		// Appended here, not by all replicas in time.
		return judgement{verdict: retry, appended: true, slow: true}
	case kafka.NotEnoughReplicas:
		// Checked before the append.
		return judgement{verdict: retry, slow: true}
	case kafka.NotEnoughReplicasAfterAppend:
		return judgement{verdict: retry, appended: true, slow: true}
	case kafka.NetworkException, kafka.BrokerNotAvailable:
		return judgement{verdict: retry, appended: true}
	case kafka.GroupLoadInProgress, kafka.GroupCoordinatorNotAvailable, kafka.NotCoordinatorForGroup,
		kafka.ConcurrentTransactions:
		// The coordinator of ids moves or loads; seen from InitProducerID on young clusters.
		return judgement{verdict: retry}
	case kafka.StaleControllerEpoch, kafka.NotController, kafka.StaleBrokerEpoch, kafka.OffsetNotAvailable:
		// The cluster is between two states.
		return judgement{verdict: retry, appended: true}
	case kafka.ThrottlingQuotaExceeded:
		return judgement{verdict: retry}
	case kafka.InvalidMessage:
		// The checksum did not fit: the bytes were damaged on the way, ours are intact.
		return judgement{verdict: retry}

	case kafka.TopicAuthorizationFailed, kafka.GroupAuthorizationFailed, kafka.ClusterAuthorizationFailed,
		kafka.TransactionalIDAuthorizationFailed, kafka.DelegationTokenAuthorizationFailed:
		// Rights are often granted minutes after the topic was made.
		return judgement{verdict: unauthorized}
	case kafka.SASLAuthenticationFailed, kafka.UnsupportedSASLMechanism, kafka.IllegalSASLState,
		kafka.DelegationTokenExpired, kafka.SecurityDisabled:
		// A credential that is being rotated, or a broker that restarts with other settings.
		return judgement{verdict: unauthorized}

	case kafka.OutOfOrderSequenceNumber, kafka.InvalidProducerEpoch, kafka.UnknownProducerId:
		return judgement{verdict: identityLost}

	case kafka.MessageSizeTooLarge, kafka.RecordListTooLarge:
		// Larger than max.message.bytes, or than a segment.
		return judgement{verdict: refused, reason: event.ReasonTooLarge}
	case kafka.InvalidRecord:
		// A null key on a compacted topic, or a record that a validator of the broker rejects.
		return judgement{verdict: refused, reason: event.ReasonInvalidRecord}
	case kafka.InvalidTimestamp:
		// Too far from the broker's clock (rule 19).
		return judgement{verdict: refused, reason: event.ReasonTimestamp}
	case kafka.InvalidTopic:
		// The name can never exist, or is the cluster's own.
		return judgement{verdict: refused, reason: event.ReasonInvalidTopic}

	case kafka.ProducerFenced, kafka.InvalidProducerIDMapping, kafka.InvalidTransactionState,
		kafka.TransactionCoordinatorFenced:
		// Somebody else owns the identity: going on would interleave with them.
		return judgement{verdict: fatal}
	case kafka.UnsupportedCompressionType, kafka.UnsupportedForMessageFormat:
		// The cluster is older than what the configuration asks of it.
		return judgement{verdict: fatal}
	}
	return judgement{verdict: alarming, appended: true}
}

// judgeError judges an error that is not (only) a code: of the network, of TLS,
// of kafka-go. None of them ever refuses an event but MessageTooLargeError, in
// which kafka-go names one message.
func judgeError(err error) judgement {
	if err == nil {
		return judgement{verdict: acked}
	}
	var (
		code     kafka.Error
		tooLarge kafka.MessageTooLargeError
		many     kafka.WriteErrors
	)
	switch {
	case errors.As(err, &many):
		for _, e := range many {
			if e != nil {
				return judgeError(e)
			}
		}
		return judgement{verdict: acked}
	case errors.As(err, &tooLarge):
		return judgement{verdict: refused, reason: event.ReasonTooLarge}
	case errors.As(err, &code):
		return judgeCode(code)
	case errors.Is(err, protocol.ErrNoTopic), errors.Is(err, protocol.ErrNoPartition), errors.Is(err, protocol.ErrNoLeader):
		// Found before anything was sent. The leaderless moment has no Temporary() in kafka-go and is transient.
		return judgement{verdict: retryLeader}
	case isOutage(err):
		// The request may have arrived: only the answer is missing (rule 11).
		return judgement{verdict: retry, appended: true}
	}
	return judgement{verdict: alarming, appended: true}
}

// Transient says whether time may heal err, for what asks brokers besides a Publisher.
func Transient(err error) bool {
	switch judgeError(err).verdict {
	case retry, retryLeader, alarming:
		return true
	}
	return false
}

// isOutage recognises errors of the network, of name resolution and of TLS.
func isOutage(err error) bool {
	var (
		netErr    net.Error
		dnsErr    *net.DNSError
		record    tls.RecordHeaderError
		alert     tls.AlertError
		verify    *tls.CertificateVerificationError
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
	)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrClosedPipe),
		errors.Is(err, net.ErrClosed), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return true
	case errors.As(err, &netErr), errors.As(err, &dnsErr):
		return true
	}
	// A certificate that is being renewed is an outage, not a verdict over events.
	return errors.As(err, &record) || errors.As(err, &alert) || errors.As(err, &verify) ||
		errors.As(err, &authority) || errors.As(err, &hostname) || errors.As(err, &invalid)
}

// backoff is the pause before retry number failures (from 1): doubling, capped,
// with jitter over its upper half, so that lanes do not come back in step.
func backoff(failures int, first, most time.Duration) time.Duration {
	d := most
	if shift := failures - 1; shift < 20 && first<<shift < most {
		d = first << shift
	}
	return d/2 + rand.N(d/2+1)
}

// grace measures how long something has been refused without a success between.
type grace struct{ since time.Time }

// exceeded notes a refusal at now and says whether it has lasted longer than most.
func (g *grace) exceeded(now time.Time, most time.Duration) bool {
	if g.since.IsZero() {
		g.since = now
	}
	return now.Sub(g.since) >= most
}

func (g *grace) clear() { g.since = time.Time{} }
