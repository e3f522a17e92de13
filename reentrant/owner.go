package reentrant

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"sync/atomic"
)

// owners makes owners: the client, 96 random bits made once per Locker, a dot, and
// a number. So nobody else ever has the same one, and Redis can tell which client
// an owner belongs to.
type owners struct {
	client string
	last   atomic.Uint64
}

func newOwners() *owners {
	var b [12]byte
	rand.Read(b[:]) // never fails: the program ends instead
	return &owners{client: base64.RawURLEncoding.EncodeToString(b[:])}
}

func (o *owners) next() string {
	b := make([]byte, 0, 32)
	b = append(append(b, o.client...), '.')
	return string(strconv.AppendUint(b, o.last.Add(1), 36))
}

// ownerDigest names an owner without giving it away.
func ownerDigest(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:4])
}
