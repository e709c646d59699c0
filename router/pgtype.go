package router

// typeKind groups PostgreSQL's types by what the router does with their text.
type typeKind uint8

const (
	// kindText is every type whose text is passed on as it is.
	kindText typeKind = iota
	kindBytea
	kindBool
	kindInt
	kindFloat4
	kindFloat8
	kindNumeric
	kindDate
	kindTime
	kindTimeTZ
	kindTimestamp
	kindTimestampTZ
	kindInterval
	kindJSON
	kindBit
	kindVarbit
	kindArray
	// kindOther has no form in Debezium's formats that could be promised.
	kindOther
)

// pgType is a column's type as far as the router needs it.
type pgType struct {
	kind typeKind
	// elem is the kind of an array's elements.
	elem typeKind
	// mod is the type modifier, -1 for none.
	mod int32
	// domain says that the column's type is a domain: its modifier is unknown.
	domain bool
}

// builtin is one type of pg_type.dat with its fixed OIDs.
type builtin struct {
	name       string
	oid, array uint32
	kind       typeKind
}

// builtins are the types with fixed OIDs whose handling differs from unknown
// ones, or whose arrays can be taken apart.
var builtins = []builtin{
	{"bool", 16, 1000, kindBool},
	{"bytea", 17, 1001, kindBytea},
	{"char", 18, 1002, kindText},
	{"name", 19, 1003, kindText},
	{"int8", 20, 1016, kindInt},
	{"int2", 21, 1005, kindInt},
	{"int4", 23, 1007, kindInt},
	{"text", 25, 1009, kindText},
	{"oid", 26, 1028, kindInt},
	{"json", 114, 199, kindJSON},
	{"xml", 142, 143, kindText},
	{"point", 600, 1017, kindOther},
	{"lseg", 601, 1018, kindOther},
	{"path", 602, 1019, kindOther},
	{"box", 603, 1020, kindOther},
	{"polygon", 604, 1027, kindOther},
	{"line", 628, 629, kindOther},
	{"cidr", 650, 651, kindText},
	{"float4", 700, 1021, kindFloat4},
	{"float8", 701, 1022, kindFloat8},
	{"circle", 718, 719, kindOther},
	{"macaddr8", 774, 775, kindText},
	{"money", 790, 791, kindOther},
	{"macaddr", 829, 1040, kindText},
	{"inet", 869, 1041, kindText},
	{"bpchar", 1042, 1014, kindText},
	{"varchar", 1043, 1015, kindText},
	{"date", 1082, 1182, kindDate},
	{"time", 1083, 1183, kindTime},
	{"timestamp", 1114, 1115, kindTimestamp},
	{"timestamptz", 1184, 1185, kindTimestampTZ},
	{"interval", 1186, 1187, kindInterval},
	{"timetz", 1266, 1270, kindTimeTZ},
	{"bit", 1560, 1561, kindBit},
	{"varbit", 1562, 1563, kindVarbit},
	{"numeric", 1700, 1231, kindNumeric},
	{"uuid", 2950, 2951, kindText},
	{"jsonb", 3802, 3807, kindJSON},
	{"int4range", 3904, 3905, kindText},
	{"numrange", 3906, 3907, kindText},
	{"tsrange", 3908, 3909, kindText},
	{"tstzrange", 3910, 3911, kindText},
	{"daterange", 3912, 3913, kindText},
	{"int8range", 3926, 3927, kindText},
}

// typeTable knows types by OID: the built-in ones, and those that Type messages
// described.
type typeTable struct {
	byOID  map[uint32]pgType
	byName map[string]pgType
}

func newTypeTable() *typeTable {
	t := &typeTable{byOID: map[uint32]pgType{}, byName: map[string]pgType{}}
	for _, b := range builtins {
		scalar := pgType{kind: b.kind, mod: -1}
		array := pgType{kind: kindArray, elem: b.kind, mod: -1}
		t.byOID[b.oid], t.byName[b.name] = scalar, scalar
		t.byOID[b.array], t.byName["_"+b.name] = array, array
	}
	return t
}

// firstUserOID is where the OIDs of types that are not built in begin
// (FirstNormalObjectId).
const firstUserOID = 16384

// extensionTypes are user-defined types that Debezium writes in forms of its own.
var extensionTypes = map[string]bool{
	"hstore": true, "geometry": true, "geography": true,
	"vector": true, "halfvec": true, "sparsevec": true,
}

// define records a Type message: see Router.DefineType.
func (t *typeTable) define(oid uint32, schema, name string) {
	if oid < firstUserOID {
		return
	}
	typ, known := t.byName[name]
	switch {
	case (schema == "" || schema == "pg_catalog") && known:
		typ.domain = true
	case extensionTypes[name]:
		typ = pgType{kind: kindOther, mod: -1}
	case len(name) > 1 && name[0] == '_':
		typ = pgType{kind: kindArray, elem: kindText, mod: -1}
	default:
		typ = pgType{kind: kindText, mod: -1}
	}
	t.byOID[oid] = typ
}

// lookup gives a column's type. An unknown type is text.
func (t *typeTable) lookup(oid uint32, mod int32) pgType {
	typ, ok := t.byOID[oid]
	if !ok {
		return pgType{kind: kindText, mod: mod}
	}
	if !typ.domain {
		typ.mod = mod
	}
	return typ
}
