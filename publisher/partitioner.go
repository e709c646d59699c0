package publisher

import "encoding/binary"

// murmur2 is the hash of Kafka's Java client (Utils.murmur2), so that consumers
// can join topics that other producers write (trap 18).
func murmur2(data []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := uint32(seed) ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := binary.LittleEndian.Uint32(data)
		k *= m
		k ^= k >> r
		k *= m
		h *= m
		h ^= k
	}
	switch len(data) {
	case 3:
		h ^= uint32(data[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(data[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}

// PartitionOf is the partition that a record of this key goes to in a topic of so many
// partitions, where its row names none. The key is not null: those have no partition of theirs.
func PartitionOf(key []byte, partitions int32) int32 { return partitionOf(key, int(partitions)) }

// partitionOf is the partition of a key that is not null.
func partitionOf(key []byte, partitions int) int32 {
	return int32(murmur2(key)&0x7fffffff) % int32(partitions)
}
