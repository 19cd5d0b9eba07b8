package protofiles

import (
	"errors"
	"testing"
)

func TestStrip(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"import": {
			"import \"buf/validate/validate.proto\";\nimport \"a.proto\";\n",
			"import \"a.proto\";\n",
		},
		"only option of a field": {
			"  string a = 1 [(buf.validate.field).string.max_bytes = 512];\n",
			"  string a = 1;\n",
		},
		"option over lines, with nested lists and strings": {
			"  int32 a = 1 [(buf.validate.field).int32 = {\n    in: [1, 2]\n    // ]\n    note: \"];\"\n  }]; // after\n",
			"  int32 a = 1; // after\n",
		},
		"first of two options": {
			"a = 1 [(buf.validate.field).required = true, deprecated = true];",
			"a = 1 [deprecated = true];",
		},
		"last of three options": {
			"a = 1 [deprecated = true, json_name = \"a,]b\", (buf.validate.field) = {}];",
			"a = 1 [deprecated = true, json_name = \"a,]b\"];",
		},
		"spaces in the name": {
			"a = 1 [ ( buf . validate . field ).required = true ];",
			"a = 1;",
		},
		"other options stay as they are": {
			"a = 1 [ (mine.validate.field) = 1,   deprecated=true ];",
			"a = 1 [ (mine.validate.field) = 1,   deprecated=true ];",
		},
		"statement at the end of a message, with the blank line before it": {
			"message A {\n  int32 a = 1;\n\n  option (buf.validate.message).cel = {\n    id: \"x\"\n    message: \"a; }\"\n  };\n  option (buf.validate.message).cel = {};\n}\n",
			"message A {\n  int32 a = 1;\n}\n",
		},
		"statement at the start of a oneof": {
			"  oneof by {\n    option (buf.validate.oneof).required = true;\n    // By id.\n    string id = 1;\n  }\n",
			"  oneof by {\n    // By id.\n    string id = 1;\n  }\n",
		},
		"statement that shares its line": {
			"message A { option (buf.validate.message).disabled = true; int32 a = 1; }",
			"message A {  int32 a = 1; }",
		},
		"own option of a method": {
			"rpc A(B) returns (C) {\n  option (required_role) = ROLE_WORKER;\n}\n",
			"rpc A(B) returns (C) {\n  option (required_role) = ROLE_WORKER;\n}\n",
		},
		"comments and strings are not syntax": {
			"// import \"buf/validate/validate.proto\"; [(buf.validate.field).x = 1]\n/* option (buf.validate.message).a = 1; */ /*/ [ */\noption a = \"[(buf.validate.field).x = 1]\\\"//\";\n",
			"// import \"buf/validate/validate.proto\"; [(buf.validate.field).x = 1]\n/* option (buf.validate.message).a = 1; */ /*/ [ */\noption a = \"[(buf.validate.field).x = 1]\\\"//\";\n",
		},
		"a field named option": {
			"message A {\n  string option = 1;\n  string import = 2;\n}\n",
			"message A {\n  string option = 1;\n  string import = 2;\n}\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := strip(c.in)
			if err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
			}
		})
	}
}

func TestStripRefusesWhatHasNoEnd(t *testing.T) {
	for in, line := range map[string]int{"a\n/* b": 2, "/*/": 1, "a\n\n\"b\nc\"": 3, "'a\\'": 1} {
		_, err := strip(in)
		if e, ok := errors.AsType[*SyntaxError](err); !ok || e.Line != line {
			t.Errorf("%q: %v", in, err)
		}
	}
}
