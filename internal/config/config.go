// Package config reads postrider.yaml: strictly, with every problem reported at
// once by path and line, and turns it into the Config structs of the packages
// that do the work. Secrets stay in the type Secret, which no output shows.
package config

import "crypto/tls"

// Config is the whole file. The yaml tags are the documented key names;
// reference.go holds a line of documentation for each.
type Config struct {
	Publisher   Publisher   `yaml:"publisher"`
	Postgres    Postgres    `yaml:"postgres"`
	Replication Replication `yaml:"replication"`
	Kafka       Kafka       `yaml:"kafka"`
	Sources     []Source    `yaml:"sources"`
	Parking     Parking     `yaml:"parking"`
	Replay      Replay      `yaml:"replay"`
	Purge       Purge       `yaml:"purge"`
	Admin       Admin       `yaml:"admin"`
	Log         Log         `yaml:"log"`
}

// Publisher names this relay and bounds what it holds.
type Publisher struct {
	Name            string   `yaml:"name"`
	Delivery        string   `yaml:"delivery"`
	Window          Bytes    `yaml:"window"`
	ShutdownTimeout Duration `yaml:"shutdown_timeout"`
}

// Postgres says where the outbox is.
type Postgres struct {
	DSN            Secret   `yaml:"dsn,omitempty"`
	DSNFile        string   `yaml:"dsn_file,omitempty"`
	Host           string   `yaml:"host,omitempty"`
	Port           int      `yaml:"port,omitempty"`
	Database       string   `yaml:"database,omitempty"`
	User           string   `yaml:"user,omitempty"`
	Password       Secret   `yaml:"password,omitempty"`
	PasswordFile   string   `yaml:"password_file,omitempty"`
	SSLMode        string   `yaml:"sslmode,omitempty"`
	SSLRootCert    string   `yaml:"sslrootcert,omitempty"`
	SSLCert        string   `yaml:"sslcert,omitempty"`
	SSLKey         string   `yaml:"sslkey,omitempty"`
	ConnectTimeout Duration `yaml:"connect_timeout"`
	Slot           string   `yaml:"slot"`
	Publication    NameList `yaml:"publication"`

	// connString is the assembled DSN with all secrets in it.
	connString Secret
}

// Replication tunes the stream.
type Replication struct {
	WALSenderTimeout Duration `yaml:"wal_sender_timeout"`
	StatusInterval   Duration `yaml:"status_interval"`
	TCPUserTimeout   Duration `yaml:"tcp_user_timeout"`
	MaxRowBytes      Bytes    `yaml:"max_row_bytes"`
}

// Kafka says where events go and how.
type Kafka struct {
	Brokers            AddressList `yaml:"brokers"`
	ClientID           string      `yaml:"client_id"`
	TLS                *KafkaTLS   `yaml:"tls,omitempty"`
	SASL               *SASL       `yaml:"sasl,omitempty"`
	Compression        string      `yaml:"compression"`
	BatchBytes         Bytes       `yaml:"batch_bytes"`
	Topics             Topics      `yaml:"topics,omitempty"`
	PartitionChange    string      `yaml:"partition_change"`
	AuthorizationGrace Duration    `yaml:"authorization_grace"`
}

// KafkaTLS turns TLS on by being there; {} takes the system's authorities.
type KafkaTLS struct {
	CAFile     string `yaml:"ca_file,omitempty"`
	CertFile   string `yaml:"cert_file,omitempty"`
	KeyFile    string `yaml:"key_file,omitempty"`
	ServerName string `yaml:"server_name,omitempty"`

	// client is built from the files when the configuration is validated.
	client *tls.Config
}

// SASL authenticates to the brokers.
type SASL struct {
	Mechanism    string `yaml:"mechanism"`
	Username     string `yaml:"username"`
	Password     Secret `yaml:"password,omitempty"`
	PasswordFile string `yaml:"password_file,omitempty"`

	// resolved is the password from wherever it came.
	resolved Secret
}

// Topics says what happens to topics that do not exist.
type Topics struct {
	Create *TopicSpec `yaml:"create,omitempty"`
}

// TopicSpec describes the topics that Postrider creates.
type TopicSpec struct {
	Partitions        int               `yaml:"partitions"`
	ReplicationFactor int               `yaml:"replication_factor"`
	Configs           map[string]string `yaml:"configs,omitempty"`
}

// Parking bounds what may be parked.
type Parking struct {
	MaxHeldKeys int `yaml:"max_held_keys"`
	MaxEvents   int `yaml:"max_events"`
}

// Replay bounds what one person may publish again.
type Replay struct {
	ApprovalAbove int `yaml:"approval_above"`
}

// Purge deletes confirmed rows from the outbox tables.
type Purge struct {
	Every     Duration  `yaml:"every"`
	Retention *Duration `yaml:"retention,omitempty"`
	Batch     int       `yaml:"batch"`
	Pause     Duration  `yaml:"pause"`
}

// SourcePurge is what one table has otherwise.
type SourcePurge struct {
	Every     *Duration `yaml:"every,omitempty"`
	Retention *Duration `yaml:"retention,omitempty"`
	AgeColumn Timestamp `yaml:"age_column,omitempty"`
}

// Admin is the HTTP server for metrics, health and status.
type Admin struct {
	Listen string `yaml:"listen"`
	Pprof  bool   `yaml:"pprof"`
}

// Log is about the log on standard error.
type Log struct {
	Level  string `yaml:"level"`
	Format string `yaml:"format"`
}
