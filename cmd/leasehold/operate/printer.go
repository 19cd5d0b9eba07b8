package operate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// printer answers: to people in tables, to programs in JSON or YAML.
type printer struct {
	out, err io.Writer
	format   string
	color    bool
	live     bool // out is a terminal
	progress bool // err is a terminal
	width    int  // of the terminal; 0: none
	now      time.Time
}

const (
	formatTable = "table"
	formatJSON  = "json"
	formatYAML  = "yaml"
)

func newPrinter(h Host, format string) (*printer, error) {
	p := &printer{out: h.Out, err: h.Err, format: format, now: time.Now()}
	p.width, p.live = terminal(h.Out)
	_, p.progress = terminal(h.Err)
	switch {
	case format == "" && p.live:
		p.format = formatTable
	case format == "":
		p.format = formatJSON
	case !slices.Contains([]string{formatTable, formatJSON, formatYAML}, format):
		return nil, usage("--output must be table, json or yaml, got %q", format)
	}
	noColor, _ := h.Env("NO_COLOR")
	dumb, _ := h.Env("TERM")
	p.color = p.live && noColor == "" && dumb != "dumb"
	return p, nil
}

// people tells whether the answer is for people.
func (p *printer) people() bool { return p.format == formatTable }

// message answers programs with a message of the API.
func (p *printer) message(m proto.Message) error {
	text, err := marshal(m)
	if err != nil {
		return failed("%w", err)
	}
	return p.json(text)
}

// marshal names the fields as the API's JSON does, zero values included: whoever reads
// .stats[].stuck wants 0 and not null.
func marshal(m proto.Message) ([]byte, error) {
	return protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
}

// value answers programs with what is no message of the API.
func (p *printer) value(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return failed("%w", err)
	}
	return p.json(text)
}

// json writes JSON in the form asked for. protojson puts spaces at random, on purpose.
func (p *printer) json(text []byte) error {
	var out bytes.Buffer
	if p.format == formatYAML {
		var node yaml.Node
		if err := yaml.Unmarshal(text, &node); err != nil {
			return failed("%w", err)
		}
		block(&node)
		encoder := yaml.NewEncoder(&out)
		encoder.SetIndent(2)
		if err := encoder.Encode(&node); err != nil {
			return failed("%w", err)
		}
	} else {
		if err := json.Indent(&out, text, "", "  "); err != nil {
			return failed("%w", err)
		}
		out.WriteByte('\n')
	}
	return p.write(out.String())
}

// block takes away the flow style that comes with JSON, but keeps strings quoted where YAML
// would take them for something else.
func block(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		block(child)
	}
}

func (p *printer) write(text string) error {
	if _, err := io.WriteString(p.out, text); err != nil {
		return failed("cannot write the answer: %w", err)
	}
	return nil
}

// say writes a line for people.
func (p *printer) say(format string, args ...any) error {
	return p.write(fmt.Sprintf(format, args...) + "\n")
}

// note writes a line beside the answer.
func (p *printer) note(format string, args ...any) { p.aside(format+"\n", args...) }

// aside writes beside the answer. Where nobody reads it, there is nobody to tell.
func (p *printer) aside(format string, args ...any) { _, _ = fmt.Fprintf(p.err, format, args...) }

// table writes rows below a header. Cells are shown as they are: clean what others wrote.
func (p *printer) table(header []string, rows [][]string) error {
	return p.write(p.tableText(header, rows))
}

func (p *printer) tableText(header []string, rows [][]string) string {
	t := table.NewWriter()
	t.SetStyle(table.Style{
		Box:     table.BoxStyle{PaddingRight: "  "},
		Options: table.OptionsNoBordersAndSeparators,
		Size:    table.SizeOptions{WidthMax: p.width},
	})
	t.SuppressTrailingSpaces()
	row := func(cells []string) table.Row {
		out := make(table.Row, len(cells))
		for i, c := range cells {
			out[i] = c
		}
		return out
	}
	t.AppendHeader(row(header))
	for _, r := range rows {
		t.AppendRow(row(r))
	}
	return t.Render() + "\n"
}

// The colours, by what they mean.
const (
	bad   = "31"
	good  = "32"
	warn  = "33"
	busy  = "36"
	faint = "2"
	bold  = "1"
)

// paint colours a text where there is colour.
func (p *printer) paint(color, text string) string {
	if !p.color || color == "" || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

var stateColors = map[string]string{
	"STUCK": bad, "DEAD": bad, "PROCESSING": busy, "COMPLETED": good, "CANCELLED": faint,
}

func (p *printer) state(name string) string { return p.paint(stateColors[name], name) }

// fields writes names and values below each other, without those that are empty.
func (p *printer) fields(pairs ...string) error {
	var b strings.Builder
	width := 11
	for i := 0; i+1 < len(pairs); i += 2 {
		width = max(width, len(pairs[i]))
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(&b, "%s %s\n", p.paint(faint, fmt.Sprintf("%-*s", width, pairs[i])), pairs[i+1])
		}
	}
	return p.write(b.String())
}

// progressLine shows how far a long act is, on a terminal.
func (p *printer) progressLine(format string, args ...any) {
	if p.progress {
		p.aside("\r\x1b[K"+format, args...)
	}
}

// progressEnd takes the line away.
func (p *printer) progressEnd() {
	if p.progress {
		p.aside("\r\x1b[K")
	}
}
