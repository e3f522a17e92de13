package inbox

import (
	"encoding/hex"
	"strconv"
	"time"
)

// An array is the text form of an array of PostgreSQL. It goes to the driver as a
// string: []byte would be sent as binary under lib/pq's binary_parameters.
type array struct{ b []byte }

// arrayOf returns an array with room for n values of so many bytes.
func arrayOf(n, size int) array { return array{make([]byte, 0, n*(size+1)+2)} }

func (a *array) next() {
	if len(a.b) == 0 {
		a.b = append(a.b, '{')
		return
	}
	a.b = append(a.b, ',')
}

func (a *array) uuid(u uuid) {
	a.next()
	a.b = hex.AppendEncode(a.b, u[:])
}

func (a *array) uuidOrNull(u uuid, ok bool) {
	if ok {
		a.uuid(u)
	} else {
		a.null()
	}
}

func (a *array) int(n int64) {
	a.next()
	a.b = strconv.AppendInt(a.b, n, 10)
}

func (a *array) null() {
	a.next()
	a.b = append(a.b, "NULL"...)
}

func (a *array) text(s string) {
	a.next()
	a.b = append(a.b, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			a.b = append(a.b, '\\')
		}
		a.b = append(a.b, s[i])
	}
	a.b = append(a.b, '"')
}

func (a *array) String() string {
	if len(a.b) == 0 {
		return "{}"
	}
	return string(append(a.b, '}'))
}

// maxReadable is how much of an ID is stored for people, in bytes.
const maxReadable = 120

// readable returns what is stored of an ID for people: its beginning, with all
// that is not printable ASCII escaped, so that any ID can be stored whatever the
// encoding of the database. The hash alone decides.
func readable(id string) string { return cut(id, maxReadable) }

// maxLast is how much of an error is stored for people, in bytes.
const maxLast = 500

func cut(id string, limit int) string {
	plain := len(id) <= limit
	for i := 0; plain && i < len(id); i++ {
		plain = ' ' <= id[i] && id[i] <= '~'
	}
	if plain {
		return id
	}
	b := make([]byte, 0, limit)
	for i, r := range id {
		n := len(b)
		switch {
		case ' ' <= r && r <= '~':
			b = append(b, byte(r))
		case r == '\uFFFD' && id[i] != "\uFFFD"[0]: // a byte that is no UTF-8
			b = append(b, `\x`...)
			b = hex.AppendEncode(b, []byte{id[i]})
		default:
			q := strconv.AppendQuoteRuneToASCII(nil, r)
			b = append(b, q[1:len(q)-1]...)
		}
		if len(b) > limit-3 {
			return string(b[:n]) + "..."
		}
	}
	return string(b)
}

// milliseconds is how settings of PostgreSQL give times. It rounds up: 0 means no
// limit there.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}
