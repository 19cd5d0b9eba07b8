package server

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// violation is one field that broke its bound.
type violation struct {
	field       string // path within the request or the item
	description string // what is allowed, with the bound
	tooLarge    bool   // payload, result, headers or checkpoint above their size
}

// invalidRequestError refuses a request, or one item of a batch, for its fields.
type invalidRequestError struct{ violations []violation }

func (e *invalidRequestError) Error() string {
	first := e.violations[0]
	text := cut(first.field, maxFieldBytes) + ": " + cut(first.description, maxDescriptionBytes)
	if n := len(e.violations) - 1; n > 0 {
		text += fmt.Sprintf(" (and %d more)", n)
	}
	return text
}

// validator checks messages against the rules that the proto declares. The rules of every
// request are compiled when the first server of the process is made: a heartbeat then costs
// about 0.5 µs and no allocation, where the first compilation costs milliseconds.
type validator struct {
	rules protovalidate.Validator
	times map[protoreflect.FullName]*timePlan
}

// serviceFiles are the files that define services.
var serviceFiles = []protoreflect.FileDescriptor{
	pb.File_leasehold_v1_lease_service_proto,
	pb.File_leasehold_v1_job_service_proto,
	pb.File_leasehold_v1_queue_service_proto,
}

// compiled is the one validator of a process: it holds nothing but what the proto says.
var compiled = sync.OnceValues(newValidator)

func newValidator() (*validator, error) {
	v := &validator{times: map[protoreflect.FullName]*timePlan{}}
	var descriptors []protoreflect.MessageDescriptor
	for _, file := range serviceFiles {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				descriptors = append(descriptors, methods.Get(j).Input())
				v.planTimes(methods.Get(j).Input())
			}
		}
	}
	rules, err := protovalidate.New(protovalidate.WithDisableLazy(), protovalidate.WithMessageDescriptors(descriptors...))
	if err != nil {
		return nil, fmt.Errorf("compile the validation rules: %w", err)
	}
	v.rules = rules
	return v, nil
}

// knows tells whether m is a message of ours; gRPC's own services have others.
func (v *validator) knows(m proto.Message) bool {
	_, ok := v.times[m.ProtoReflect().Descriptor().FullName()]
	return ok
}

// check returns an *invalidRequestError where m breaks a rule. Items of a batch are not
// looked into: each is checked by itself, so that one never voids the others (R3).
func (v *validator) check(m proto.Message) error {
	if acquire, ok := m.(*pb.AcquireLeaseRequest); ok && plainAcquire(acquire) {
		return nil
	}
	refl := m.ProtoReflect()
	if plan := v.times[refl.Descriptor().FullName()]; plan != nil {
		var found []violation
		plan.check(refl, "", &found)
		if len(found) > 0 {
			// The rules are not evaluated: they compare times, and what has no value as a
			// time must not reach a comparison.
			return &invalidRequestError{violations: found}
		}
	}
	err := v.rules.Validate(m)
	if err == nil {
		return nil
	}
	broken, ok := errors.AsType[*protovalidate.ValidationError](err)
	if !ok {
		return fmt.Errorf("validate %s: %w", refl.Descriptor().FullName(), err)
	}
	e := &invalidRequestError{}
	for _, b := range broken.Violations {
		e.violations = append(e.violations, describe(b))
	}
	return e
}

// timePlan lists the fields of a message that are, or contain, durations and timestamps.
// protobuf carries any pair of seconds and nanos; converting one of opposite signs, or of
// the year 292,000,000,000, gives a plausible wrong value.
type timePlan struct{ fields []timeField }

type timeField struct {
	field protoreflect.FieldDescriptor
	sub   *timePlan // nil: the field is itself a time
}

const (
	durationName  protoreflect.FullName = "google.protobuf.Duration"
	timestampName protoreflect.FullName = "google.protobuf.Timestamp"
)

// planTimes makes the plan of a message, nil where it has no times.
func (v *validator) planTimes(d protoreflect.MessageDescriptor) *timePlan {
	if plan, done := v.times[d.FullName()]; done {
		return plan
	}
	plan := &timePlan{}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if f.Message() == nil || f.IsMap() {
			continue
		}
		name := f.Message().FullName()
		if name == durationName || name == timestampName {
			plan.fields = append(plan.fields, timeField{field: f})
		} else if sub := v.planTimes(f.Message()); sub != nil && !isBatchItems(f) {
			plan.fields = append(plan.fields, timeField{field: f, sub: sub})
		}
	}
	if len(plan.fields) == 0 {
		plan = nil
	}
	v.times[d.FullName()] = plan
	return plan
}

// isBatchItems tells the items of a batch, which the proto excludes from the rules as well.
func isBatchItems(f protoreflect.FieldDescriptor) bool {
	return f.Name() == "items" && strings.HasPrefix(string(f.Parent().Name()), "Batch")
}

func (p *timePlan) check(m protoreflect.Message, path string, found *[]violation) {
	for _, f := range p.fields {
		if !m.Has(f.field) {
			continue
		}
		name := path + string(f.field.Name())
		if !f.field.IsList() {
			f.checkOne(m.Get(f.field).Message(), name, found)
			continue
		}
		list := m.Get(f.field).List()
		for i := range list.Len() {
			f.checkOne(list.Get(i).Message(), fmt.Sprintf("%s[%d]", name, i), found)
		}
	}
}

func (f timeField) checkOne(m protoreflect.Message, path string, found *[]violation) {
	if f.sub != nil {
		f.sub.check(m, path+".", found)
		return
	}
	switch t := m.Interface().(type) {
	case *durationpb.Duration:
		if t.CheckValid() != nil {
			*found = append(*found, violation{field: path, description: fmt.Sprintf(
				"must be a valid duration: seconds within ±315,576,000,000, nanos within ±999,999,999 and of the same sign, got %d s and %d ns", t.GetSeconds(), t.GetNanos())})
		}
	case *timestamppb.Timestamp:
		if t.CheckValid() != nil {
			*found = append(*found, violation{field: path, description: fmt.Sprintf(
				"must be a valid timestamp: from year 1 to year 9999, nanos 0 to 999,999,999, got %d s and %d ns", t.GetSeconds(), t.GetNanos())})
		}
	}
}
