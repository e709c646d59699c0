package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/topic"
)

// topicOnlyRecord is a line of --topic-only.
type topicOnlyRecord struct {
	EventID   string    `json:"event_id"`
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
	Time      time.Time `json:"time"`
	Key       *string   `json:"key"`
}

// topicOnlyList is the file of --topic-only. It takes the name's place when it is whole: a
// recovery that is resumed behind its comparison reads no topic, and must not empty what
// the first attempt wrote.
type topicOnlyList struct {
	file *os.File
	// name is what the file is to be called; "" where it was opened under its name.
	name string
}

// listTopicOnly opens it; nil where none was asked for.
func (o *recoverOptions) listTopicOnly() (*topicOnlyList, error) {
	if o.topicOnly == "" {
		return nil, nil
	}
	list := &topicOnlyList{name: o.topicOnly}
	path := o.topicOnly + ".part"
	if info, err := os.Stat(o.topicOnly); err == nil && !info.Mode().IsRegular() {
		path, list.name = o.topicOnly, "" // a pipe, or standard output
	}
	var err error
	if list.file, err = os.Create(path); err != nil {
		return nil, &operr.Error{Class: operr.Config, Op: "write", Subject: "--topic-only", Err: err}
	}
	enc := json.NewEncoder(list.file)
	enc.SetEscapeHTML(false)
	o.TopicOnly = func(rec *topic.Record, id []byte) error {
		line := topicOnlyRecord{EventID: string(id), Topic: rec.Topic, Partition: rec.Partition, Offset: rec.Offset, Time: rec.Time.UTC()}
		if rec.Key != nil {
			key := string(rec.Key)
			line.Key = &key
		}
		return enc.Encode(line)
	}
	return list, nil
}

// end gives the file its name where the topics were read to their end; else it goes.
func (l *topicOnlyList) end(whole bool, say io.Writer) error {
	if l == nil {
		return nil
	}
	err := l.file.Close()
	switch {
	case l.name == "":
	case whole && err == nil:
		err = os.Rename(l.file.Name(), l.name)
	default:
		err = errors.Join(err, os.Remove(l.file.Name()))
		fmt.Fprintf(say, "--topic-only: no topic was compared to its end, %s is as it was\n", l.name)
	}
	if err != nil {
		return &operr.Error{Class: operr.Config, Op: "write", Subject: "--topic-only", Err: err}
	}
	return nil
}
