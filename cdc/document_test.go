package cdc

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
)

// fill sets all that v holds, one level of what it points to included, to
// something, or leaves some of it as it is.
func fill(v reflect.Value, some func() bool, rnd *rand.Rand) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		if some() {
			zone := time.FixedZone("", 60*rnd.IntN(600))
			v.Set(reflect.ValueOf(time.Unix(rnd.Int64N(1<<33), rnd.Int64N(3)*1_234_000).In([]*time.Location{time.UTC, zone}[rnd.IntN(2)])))
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), some, rnd)
		}
	case reflect.Pointer:
		if some() {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), some, rnd)
		}
	case reflect.Slice:
		for range rnd.IntN(3) + 1 {
			if some() {
				v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
				fill(v.Index(v.Len()-1), some, rnd)
			}
		}
	case reflect.Map: // beside the document
	case reflect.String:
		if some() {
			v.SetString([]string{"streaming", "Ab-9_", "a\"b\\c", "<&>\u2028", "\x00\n\x7f", "not\xffUTF-8", "日本"}[rnd.IntN(7)])
		}
	case reflect.Bool:
		v.SetBool(some())
	case reflect.Int, reflect.Int64:
		if some() {
			v.SetInt(rnd.Int64() >> rnd.IntN(63))
		}
	case reflect.Uint32, reflect.Uint64:
		if some() {
			v.SetUint(rnd.Uint64() >> rnd.IntN(64) & (1<<(8*v.Type().Size()-1)<<1 - 1))
		}
	default:
		panic("a checkpoint has a " + v.Type().String())
	}
}

// The document is what encoding/json makes of a checkpoint, of whatever it holds:
// a field that is new, too.
func TestDocumentIsWhatEncodingJSONMakes(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 5_000 {
		var c Checkpoint
		fill(reflect.ValueOf(&c).Elem(), func() bool { return i == 1 || i > 1 && rnd.IntN(3) > 0 }, rnd)
		want, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.AppendJSON([]byte("before"))
		if err != nil || string(got) != "before"+string(want) {
			t.Fatalf("%+v\nis written as %s, %v\nwant           before%s", c, got, err, want)
		}
	}
}

// A time that JSON cannot hold is an error in both.
func TestDocumentOfImpossibleTime(t *testing.T) {
	t.Parallel()
	never := time.Date(12345, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []Checkpoint{{WrittenAt: never}, {CoveredTime: never}, {LastCommit: Commit{Time: never}}, {Since: &Since{Time: never}}} {
		_, want := json.Marshal(c)
		if got, err := c.AppendJSON(nil); want == nil || err == nil {
			t.Errorf("%+v is %s, %v; encoding/json: %v", c, got, err, want)
		}
	}
}

func TestLSNIsSpeltAsPostgreSQLDoes(t *testing.T) {
	t.Parallel()
	for lsn, want := range map[LSN]string{0: "0/0", 0xF: "0/F", 0x10: "0/10", 0x16B3748: "0/16B3748", 0xA00000000: "A/0", EndOfWAL: strings.Repeat("F", 8) + "/FFFFFFFF"} {
		if got := lsn.String(); got != want {
			t.Errorf("%d is %s, want %s", uint64(lsn), got, want)
		}
	}
}
