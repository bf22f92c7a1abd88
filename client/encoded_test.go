package client

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// otherwise has the fields that Encode does not take from the task: the trace comes from the
// context, and a payload as JSON is another form of its data.
var otherwise = []string{"trace_parent", "payload.json"}

// aTerm is a field that callers set, by its path in the contract, and a task that has it.
type aTerm struct {
	path string
	with *perceptorv1.Task
	// parent has what is around the field, without it.
	parent *perceptorv1.Task
	isSpan bool
}

// terms returns every field of a task that the contract lets callers set, those of its messages
// each by itself.
func terms(t *testing.T) (all []aTerm) {
	t.Helper()
	var visit func(prefix string, at func(*perceptorv1.Task) protoreflect.Message, fields protoreflect.FieldDescriptors)
	visit = func(prefix string, at func(*perceptorv1.Task) protoreflect.Message, fields protoreflect.FieldDescriptors) {
		for i := range fields.Len() {
			f := fields.Get(i)
			if isOutput(f) {
				continue
			}
			path := prefix + string(f.Name())
			if slices.Contains(otherwise, path) {
				continue
			}
			if m := f.Message(); m != nil && !f.IsMap() && !f.IsList() && m.FullName().Parent() == "perceptor.v1" {
				visit(path+".", func(p *perceptorv1.Task) protoreflect.Message { return at(p).Mutable(f).Message() }, m.Fields())
				continue
			}
			term := aTerm{path: path, with: &perceptorv1.Task{}, parent: &perceptorv1.Task{}}
			at(term.parent)
			in := at(term.with)
			in.Set(f, someValue(t, in, f))
			if m := f.Message(); m != nil {
				term.isSpan = m.FullName() == (&durationpb.Duration{}).ProtoReflect().Descriptor().FullName()
			}
			all = append(all, term)
		}
	}
	visit("", func(p *perceptorv1.Task) protoreflect.Message { return p.ProtoReflect() }, (&perceptorv1.Task{}).ProtoReflect().Descriptor().Fields())
	return all
}

func isOutput(f protoreflect.FieldDescriptor) bool {
	behaviour, _ := proto.GetExtension(f.Options(), annotations.E_FieldBehavior).([]annotations.FieldBehavior)
	return slices.Contains(behaviour, annotations.FieldBehavior_OUTPUT_ONLY)
}

// someValue returns a value that is not that of a field that is not set.
func someValue(t *testing.T, in protoreflect.Message, f protoreflect.FieldDescriptor) protoreflect.Value {
	t.Helper()
	switch {
	case f.IsMap():
		m := in.NewField(f)
		m.Map().Set(protoreflect.ValueOfString("a").MapKey(), protoreflect.ValueOfString("b"))
		return m
	case f.IsList():
		l := in.NewField(f)
		l.List().Append(protoreflect.ValueOfString("a"))
		return l
	}
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("a")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("a"))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(7)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(7)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(0.5)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(2)
	case protoreflect.MessageKind:
		switch in.NewField(f).Message().Interface().(type) {
		case *durationpb.Duration:
			return protoreflect.ValueOfMessage(durationpb.New(90 * time.Second).ProtoReflect())
		case *timestamppb.Timestamp:
			return protoreflect.ValueOfMessage(timestamppb.New(time.Unix(1_900_000_000, 0)).ProtoReflect())
		}
	}
	t.Fatalf("%s: this test knows no value of this kind: add one", f.FullName())
	return protoreflect.Value{}
}

// TestEveryTermReachesTheServiceAndItsRules takes the terms from the contract, so one that is
// added there and forgotten here fails.
func TestEveryTermReachesTheServiceAndItsRules(t *testing.T) {
	t.Parallel()
	all := terms(t)
	if len(all) < 25 {
		t.Fatalf("only %d terms were found", len(all))
	}
	for _, term := range all {
		read, bare := taskInfo(term.with).Task, taskInfo(term.parent).Task
		if sent := read.proto(); !proto.Equal(sent, term.with) {
			t.Errorf("%s: is read and sent as %v, want %v", term.path, sent, term.with)
		}
		if reflect.DeepEqual(read.spec(), bare.spec()) {
			t.Errorf("%s: Encode does not check it: spec leaves it out", term.path)
		}
	}
}

func TestAFractionOfAMillisecondIsRefusedInEveryDuration(t *testing.T) {
	t.Parallel()
	spans := 0
	for _, term := range terms(t) {
		if !term.isSpan {
			continue
		}
		spans++
		read := taskInfo(term.with).Task
		addNanosecond(reflect.ValueOf(&read).Elem())
		_, err := EncodeChange(t.Context(), read, nil)
		if err != nil {
			t.Errorf("%s: a change is refused: %v", term.path, err)
		}
		_, err = Encode(t.Context(), read, nil)
		var refused *Error
		if !errors.As(err, &refused) || !slices.ContainsFunc(refused.Fields, func(f FieldError) bool {
			return f.Field == term.path && f.Message == "1m30.000000001s is not a whole number of milliseconds"
		}) {
			t.Errorf("%s: got %v", term.path, err)
		}
	}
	if spans < 8 {
		t.Errorf("only %d durations were found", spans)
	}
}

// addNanosecond changes the durations of 90 s in a task.
func addNanosecond(v reflect.Value) {
	for i := range v.NumField() {
		switch f := v.Field(i); {
		case f.Type() == reflect.TypeFor[time.Duration]() && f.Int() == int64(90*time.Second):
			f.SetInt(f.Int() + 1)
		case f.Type() == reflect.TypeFor[RetryPolicy]():
			addNanosecond(f)
		}
	}
}
