package operate

import (
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// count is a flag that is unset unless given: its bounds are the service's.
type count struct{ n **int32 }

// String is pflag.Value.
func (c count) String() string {
	if c.n == nil || *c.n == nil {
		return ""
	}
	return strconv.Itoa(int(**c.n))
}

// Set is pflag.Value.
func (c count) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return fmt.Errorf("%q is no number", text)
	}
	*c.n = proto.Int32(int32(n))
	return nil
}

// Type is pflag.Value.
func (count) Type() string { return "number" }

// ratio is a number with a fraction that is unset unless given.
type ratio struct{ r **float64 }

// String is pflag.Value.
func (r ratio) String() string {
	if r.r == nil || *r.r == nil {
		return ""
	}
	return strconv.FormatFloat(**r.r, 'g', -1, 64)
}

// Set is pflag.Value.
func (r ratio) Set(text string) error {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return fmt.Errorf("%q is no number", text)
	}
	*r.r = &v
	return nil
}

// Type is pflag.Value.
func (ratio) Type() string { return "number" }

// size is a flag of bytes: 512, 100MiB, 2GiB.
type size struct{ n *int64 }

var units = []struct {
	name  string
	shift uint
}{{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}, {"", 0}}

// String is pflag.Value.
func (s size) String() string {
	if s.n == nil || *s.n == 0 {
		return ""
	}
	return strconv.FormatInt(*s.n, 10)
}

// Set is pflag.Value.
func (s size) Set(text string) error {
	for _, u := range units {
		digits, has := cutSuffix(text, u.name)
		if !has {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n < 1 || n > (1<<62)>>u.shift {
			break
		}
		*s.n = n << u.shift
		return nil
	}
	return fmt.Errorf("%q is no size, as 500MiB or 100GiB", text)
}

// Type is pflag.Value.
func (size) Type() string { return "size" }

func cutSuffix(text, suffix string) (string, bool) {
	if len(text) <= len(suffix) || text[len(text)-len(suffix):] != suffix {
		return text, false
	}
	return text[:len(text)-len(suffix)], true
}

// changed answers with a queue that was changed.
func (s *session) changed(q *pb.Queue, err error, resp proto.Message) error {
	if err != nil {
		return err
	}
	if !s.people() {
		return s.message(resp)
	}
	return s.queue(q, nil)
}
