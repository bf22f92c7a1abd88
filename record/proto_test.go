package record_test

import (
	_ "embed"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"pgregory.net/rapid"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/record"
)

// compiled is record.proto as a compiler without other files sees it.
// proto/generate.sh writes it.
//
//go:embed testdata/record.binpb
var compiled []byte

// foreign returns the message RunRecord of record.proto.
func foreign(t testing.TB) protoreflect.MessageDescriptor {
	t.Helper()
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(compiled, &set); err != nil {
		t.Fatal(err)
	}
	for _, f := range set.GetFile() {
		if f.GetName() == "record.proto" {
			file, err := protodesc.NewFile(f, protoregistry.GlobalFiles)
			if err != nil {
				t.Fatal(err)
			}
			return file.Messages().ByName("RunRecord")
		}
	}
	t.Fatal("testdata/record.binpb does not contain record.proto")
	return nil
}

func TestRecordProtoDecodesEveryRecord(t *testing.T) {
	message := foreign(t)
	rapid.Check(t, func(r *rapid.T) {
		_, value, _ := record.Encode(drawPublication(r, t), "shop")
		read := dynamicpb.NewMessage(message)
		if err := proto.Unmarshal(value, read); err != nil {
			r.Fatal(err)
		}
		if unknown := read.GetUnknown(); len(unknown) > 0 {
			r.Fatalf("record.proto does not know %x", unknown)
		}
		written, err := proto.Marshal(read)
		if err != nil {
			r.Fatal(err)
		}
		var got, want perceptorv1.RunRecord
		if err := proto.Unmarshal(written, &got); err != nil {
			r.Fatal(err)
		}
		if err := proto.Unmarshal(value, &want); err != nil {
			r.Fatal(err)
		}
		if diff := cmp.Diff(&want, &got, protocmp.Transform()); diff != "" {
			r.Fatalf("record.proto reads another record (-want +got):\n%s", diff)
		}
	})
}

func TestRecordProtoHasTheFieldsOfTheContract(t *testing.T) {
	type field struct {
		Number protoreflect.FieldNumber
		Kind   protoreflect.Kind
		JSON   string
	}
	fields := func(m protoreflect.MessageDescriptor) map[protoreflect.Name]field {
		all := map[protoreflect.Name]field{}
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			all[f.Name()] = field{f.Number(), f.Kind(), f.JSONName()}
		}
		return all
	}
	ours := (&perceptorv1.RunRecord{}).ProtoReflect().Descriptor()
	theirs := foreign(t)
	if diff := cmp.Diff(fields(ours), fields(theirs)); diff != "" {
		t.Errorf("fields (-contract +record.proto):\n%s", diff)
	}
	types := func(m protoreflect.MessageDescriptor) map[protoreflect.Name]protoreflect.EnumNumber {
		all := map[protoreflect.Name]protoreflect.EnumNumber{}
		values := m.Fields().ByName("type").Enum().Values()
		for i := range values.Len() {
			all[values.Get(i).Name()] = values.Get(i).Number()
		}
		return all
	}
	if diff := cmp.Diff(types(ours), types(theirs)); diff != "" {
		t.Errorf("types (-contract +record.proto):\n%s", diff)
	}
}

func TestARecordThatIsPublishedAgainHasNoClaimTime(t *testing.T) {
	p := sample(t)
	p.ClaimedAt = 0
	_, value, _ := record.Encode(p, "shop")
	read := dynamicpb.NewMessage(foreign(t))
	if err := proto.Unmarshal(value, read); err != nil {
		t.Fatal(err)
	}
	if f := read.Descriptor().Fields().ByName("claim_time"); read.Has(f) {
		t.Errorf("claim_time = %v, want it absent", read.Get(f))
	}
}
