package devstack

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const (
	kafkaUser     = "relay"
	kafkaPassword = "relay-secret"
)

// secure makes a certificate authority and the broker's certificate, and sets
// what clients need.
func (k *Kafka) secure() error {
	k.User, k.Password = kafkaUser, kafkaPassword
	k.CAFile = k.work.join("ca.pem")
	ca, caKey, err := certificate(nil, nil, "devstack CA")
	if err != nil {
		return err
	}
	server, serverKey, err := certificate(ca, caKey, "localhost")
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(serverKey)
	if err != nil {
		return err
	}
	// Kafka's PEM keystore: the PKCS#8 key, then the certificate.
	store := append(encodePEM("PRIVATE KEY", key), encodePEM("CERTIFICATE", server.Raw)...)
	if err := os.WriteFile(k.work.join("keystore.pem"), store, 0o600); err != nil {
		return err
	}
	return os.WriteFile(k.CAFile, encodePEM("CERTIFICATE", ca.Raw), 0o644)
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// certificate makes a key pair for this machine, signed by parent, or by itself
// as an authority where parent is nil.
func certificate(parent *x509.Certificate, parentKey *ecdsa.PrivateKey, name string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(365 * 24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.ParseIP(host)},
	}
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid = true, true
		template.KeyUsage |= x509.KeyUsageCertSign
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}

// secureProperties replaces the plain listener.
func (k *Kafka) secureProperties(n *kafkaNode) properties {
	login := func(module, extra string) string {
		return fmt.Sprintf("org.apache.kafka.common.security.%s required username=%q password=%q%s;",
			module, k.User, k.Password, extra)
	}
	return properties{
		"listeners":                                             fmt.Sprintf("SASL_SSL://%s,CONTROLLER://%s", address(n.port), address(n.controllerPort)),
		"advertised.listeners":                                  "SASL_SSL://" + k.advertised(n),
		"listener.security.protocol.map":                        "CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
		"inter.broker.listener.name":                            "SASL_SSL",
		"sasl.mechanism.inter.broker.protocol":                  "SCRAM-SHA-512",
		"sasl.enabled.mechanisms":                               "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN",
		"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": login("scram.ScramLoginModule", ""),
		"listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": login("scram.ScramLoginModule", ""),
		"listener.name.sasl_ssl.plain.sasl.jaas.config": login("plain.PlainLoginModule",
			fmt.Sprintf(" user_%s=%q", k.User, k.Password)),
		"ssl.keystore.type":       "PEM",
		"ssl.keystore.location":   k.work.join("keystore.pem"),
		"ssl.truststore.type":     "PEM",
		"ssl.truststore.location": k.CAFile,
		"ssl.client.auth":         "requested",
	}
}

// scram are StorageTool's arguments that create the user, the broker's own too.
func (k *Kafka) scram() []string {
	if !k.opts.Secure {
		return nil
	}
	var args []string
	for _, mechanism := range []string{"SCRAM-SHA-512", "SCRAM-SHA-256"} {
		args = append(args, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, k.User, k.Password))
	}
	return args
}

// TLS is the client side of a secure cluster; nil for a plain one.
func (k *Kafka) TLS() (*tls.Config, error) {
	if !k.opts.Secure {
		return nil, nil //nolint:nilnil // nil is the documented answer for a plain cluster
	}
	ca, err := os.ReadFile(k.CAFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("no certificate in " + k.CAFile)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// ClientOptions are what a franz-go client needs for a secure cluster.
func (k *Kafka) ClientOptions() ([]kgo.Opt, error) {
	config, err := k.TLS()
	if err != nil || config == nil {
		return nil, err
	}
	auth := scram.Auth{User: k.User, Pass: k.Password}
	return []kgo.Opt{kgo.DialTLSConfig(config), kgo.SASL(auth.AsSha512Mechanism())}, nil
}
