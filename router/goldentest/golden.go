// Package goldentest reads the scenarios that the real Event Router was run on, for
// tests: of the router alone, and of the whole program against real servers.
package goldentest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
)

// Scenario is one table, the statements that were run on it, the options of Event
// Router, and what it wrote.
type Scenario struct {
	Name string `json:"name"`
	// Columns is the body of create table outbox (…).
	Columns     string            `json:"columns"`
	Statements  []string          `json:"statements"`
	EventRouter map[string]string `json:"event_router"`
	Converter   string            `json:"converter"`
	Records     []Record          `json:"records"`
	// Failure says how Event Router failed, "" where it did not.
	Failure string `json:"failure"`
}

// Record is one record as it was found in Kafka; topics had six partitions.
type Record struct {
	Topic     string   `json:"topic"`
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
	Key       Bytes    `json:"key"`
	Value     Bytes    `json:"value"`
	Headers   []Header `json:"headers"`
}

// Header is a name and a value.
type Header struct {
	Name  string
	Value Bytes
}

// Bytes is a key or value: nil for null; text, or {"base64": …} where it is no UTF-8.
type Bytes []byte

// UnmarshalJSON reads both forms.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	var text *string
	if err := json.Unmarshal(data, &text); err == nil {
		*b = nil
		if text != nil {
			*b = append(Bytes{}, *text...)
		}
		return nil
	}
	var binary struct {
		Base64 string `json:"base64"`
	}
	if err := json.Unmarshal(data, &binary); err != nil {
		return fmt.Errorf("read bytes: %w", err)
	}
	raw, err := base64.StdEncoding.DecodeString(binary.Base64)
	*b = raw
	return err
}

// UnmarshalJSON reads [name, value].
func (h *Header) UnmarshalJSON(data []byte) error {
	var pair [2]json.RawMessage
	if err := json.Unmarshal(data, &pair); err != nil {
		return fmt.Errorf("read header: %w", err)
	}
	if err := json.Unmarshal(pair[0], &h.Name); err != nil {
		return fmt.Errorf("read header name: %w", err)
	}
	return h.Value.UnmarshalJSON(pair[1])
}

// Load reads the scenarios of a file.
func Load(path string) ([]Scenario, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read golden file: %w", err)
	}
	var file struct {
		Scenarios []Scenario `json:"scenarios"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("decode golden file %s: %w", path, err)
	}
	return file.Scenarios, nil
}
