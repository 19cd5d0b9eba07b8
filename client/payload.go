package client

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// ProtoContentType is the content type that ProtoPayload states.
const ProtoContentType = "application/x-protobuf"

// Payload is what a producer gives to a worker, or a worker leaves as a result. The service never
// looks into it. The zero value is empty.
type Payload struct {
	// Data is the content, at most 1 MiB.
	Data []byte
	// JSON says that Data is one JSON value. It is kept byte for byte, and is legible to SQL.
	JSON bool
	// ContentType is for the reader, at most 256 bytes. Default: empty.
	ContentType string
}

// JSONPayload encodes v by encoding/json. It fails where v cannot be encoded.
func JSONPayload(v any) (Payload, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return Payload{}, err
	}
	return Payload{Data: data, JSON: true}, nil
}

// ProtoPayload encodes m in protobuf's binary form; equal messages become equal bytes, which an
// idempotency key needs. It fails where m lacks a required field or has text that is not UTF-8.
func ProtoPayload(m proto.Message) (Payload, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return Payload{}, err
	}
	return Payload{Data: data, ContentType: ProtoContentType}, nil
}

// PayloadError is a payload that a typed handler cannot read.
type PayloadError struct {
	Want  string // what the handler takes
	cause error
}

func (e *PayloadError) Error() string {
	return fmt.Sprintf("the payload is no %s: %v", e.Want, e.cause)
}

// Unwrap is what the decoder said.
func (e *PayloadError) Unwrap() error { return e.cause }

// DecodeJSON reads the payload into v by encoding/json. Fields that v does not know are passed
// over. It fails with *PayloadError.
func (p Payload) DecodeJSON(v any) error {
	if err := json.Unmarshal(p.Data, v); err != nil {
		return &PayloadError{Want: fmt.Sprintf("JSON of %T", v), cause: err}
	}
	return nil
}

// DecodeProto reads the payload into m: protobuf's binary form, or its JSON where the producer gave
// JSON. Fields that m does not know are passed over. It fails with *PayloadError.
func (p Payload) DecodeProto(m proto.Message) error {
	var err error
	if p.JSON {
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(p.Data, m)
	} else {
		err = proto.Unmarshal(p.Data, m)
	}
	if err != nil {
		return &PayloadError{Want: string(m.ProtoReflect().Descriptor().FullName()), cause: err}
	}
	return nil
}

// wire is the payload in the terms of the API; nil for the zero value. Text that is not UTF-8 is
// refused here: gRPC would not send it, and could not say why.
func (p Payload) wire() (*pb.Payload, error) {
	if !utf8.ValidString(p.ContentType) {
		return nil, notUTF8("payload.content_type")
	}
	switch {
	case p.JSON && !utf8.Valid(p.Data):
		return nil, notUTF8("payload.json")
	case p.JSON:
		return &pb.Payload{Content: &pb.Payload_Json{Json: string(p.Data)}, ContentType: p.ContentType}, nil
	case len(p.Data) > 0:
		return &pb.Payload{Content: &pb.Payload_Data{Data: p.Data}, ContentType: p.ContentType}, nil
	case p.ContentType != "":
		return &pb.Payload{ContentType: p.ContentType}, nil
	}
	return nil, nil
}

func notUTF8(field string) error { return &InvalidError{Field: field, Want: "must be UTF-8"} }

func payloadOf(p *pb.Payload) Payload {
	out := Payload{Data: p.GetData(), ContentType: p.GetContentType()}
	if content, ok := p.GetContent().(*pb.Payload_Json); ok {
		out.Data, out.JSON = []byte(content.Json), true
	}
	return out
}
