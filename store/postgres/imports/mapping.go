package imports

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Mapping says what the rows of a table are as jobs. Fields of Fields are SQL expressions over
// one row, which is called t.
type Mapping struct {
	// Name is what is remembered of which rows were taken over. 1..128 bytes.
	Name string `yaml:"import"`
	// Table is the table, with its schema.
	Table string `yaml:"table"`
	// Key is a column that is unique and never NULL, with an index.
	Key string `yaml:"key"`
	// Where is a condition that rows must meet. Default: all.
	Where  string `yaml:"where"`
	Fields Fields `yaml:"fields"`
	// States are what the values of Fields.State mean: a state, or SKIP.
	States map[string]string `yaml:"states"`
	// Expired is what becomes of a row that is PROCESSING and whose lease has run out: PENDING
	// (default), it runs again, or STUCK, an operator decides.
	Expired string `yaml:"expired"`
	// After is what becomes of a row that was taken over: keep (default) or delete.
	After string `yaml:"after"`
}

// Fields are SQL expressions. Queue is required; NULL and unset are the default of enqueue.
type Fields struct {
	Queue          string `yaml:"queue"`
	Payload        string `yaml:"payload"` // JSON
	Data           string `yaml:"data"`    // bytea, instead of payload
	ContentType    string `yaml:"content_type"`
	Headers        string `yaml:"headers"` // jsonb
	Subject        string `yaml:"subject"`
	Priority       string `yaml:"priority"`
	RunAt          string `yaml:"run_at"`
	IdempotencyKey string `yaml:"idempotency_key"`
	MaxAttempts    string `yaml:"max_attempts"`
	State          string `yaml:"state"`    // default: PENDING
	Attempts       string `yaml:"attempts"` // used so far
	CreatedAt      string `yaml:"created_at"`
	FinishedAt     string `yaml:"finished_at"`
	LeaseOwner     string `yaml:"lease_owner"`
	LeaseUntil     string `yaml:"lease_until"`
	Result         string `yaml:"result"` // JSON
	Error          string `yaml:"error"`  // text of the last failure
}

const (
	pending    = "PENDING"
	processing = "PROCESSING"
	stuck      = "STUCK"
	skip       = "SKIP"
	keepRows   = "keep"
	deleteRows = "delete"
)

var knownStates = []string{pending, processing, stuck, "COMPLETED", "DEAD", "CANCELLED", skip}

// Parse reads a mapping file. All faults are joined.
func Parse(text []byte) (*Mapping, error) {
	m := &Mapping{}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(m); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the mapping cannot be read: %w", err)
	}
	if m.Expired == "" {
		m.Expired = pending
	}
	if m.After == "" {
		m.After = keepRows
	}
	return m, m.validate()
}

func (m *Mapping) validate() error {
	var faults []error
	fault := func(is bool, format string, args ...any) {
		if is {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(m.Name == "" || len(m.Name) > 128, "import: must be a name of 1..128 bytes")
	fault(m.Table == "", "table: is required")
	fault(m.Key == "", "key: is required")
	fault(m.Fields.Queue == "", "fields.queue: is required, as an SQL expression: \"'payments'\"")
	fault(m.Fields.Payload != "" && m.Fields.Data != "", "fields.payload and fields.data: must not both be set")
	fault((m.Fields.State == "") != (len(m.States) == 0), "fields.state and states: one needs the other")
	fault(m.Expired != pending && m.Expired != stuck, "expired: must be %s or %s, got %q", pending, stuck, m.Expired)
	fault(m.After != keepRows && m.After != deleteRows, "after: must be %s or %s, got %q", keepRows, deleteRows, m.After)
	leases := false
	for _, value := range slices.Sorted(maps.Keys(m.States)) {
		state := m.States[value]
		leases = leases || state == processing
		fault(!slices.Contains(knownStates, state), "states.%s: must be one of %s, got %q", value, strings.Join(knownStates, ", "), state)
	}
	fault(leases && m.Fields.LeaseUntil == "", "fields.lease_until: is required where a state is %s: it says whether somebody still works on the row", processing)
	return errors.Join(faults...)
}

// columns are the fields in the order of sqlTake, each with the type that it must have.
func (m *Mapping) columns() []string {
	f := &m.Fields
	typed := [][2]string{
		{f.Queue, "text"}, {f.Payload, "text"}, {f.Data, "bytea"}, {f.ContentType, "text"}, {f.Headers, "jsonb"}, {f.Subject, "text"},
		{f.Priority, "integer"}, {f.RunAt, "timestamptz"}, {f.IdempotencyKey, "text"}, {f.MaxAttempts, "integer"},
		{f.State, "text"}, {f.Attempts, "integer"}, {f.CreatedAt, "timestamptz"}, {f.FinishedAt, "timestamptz"},
		{f.LeaseOwner, "text"}, {f.LeaseUntil, "timestamptz"}, {f.Result, "text"}, {f.Error, "text"},
	}
	out := make([]string, len(typed))
	for i, t := range typed {
		expression := t[0]
		if expression == "" {
			expression = "NULL"
		}
		out[i] = fmt.Sprintf("CAST((%s) AS %s)", expression, t[1])
		if t[1] == "timestamptz" {
			out[i] += "::text" // Go's times know no infinity, which is a row's own fault
		}
	}
	return out
}
