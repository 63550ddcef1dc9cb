"""Contract sections 1, 2 and 7: what a request may look like, and the error bodies of those that may not."""

from __future__ import annotations

import hashlib
import json
import uuid

import pytest

from harness import Program, Server, call, multipart

ANSWER_42 = "def main():\n    return 42\n"


def part(name: str, content: bytes, content_type: str = "application/json", disposition: str | None = None) -> bytes:
    disposition = disposition or f'form-data; name="{name}"'
    return f"--b\r\nContent-Disposition: {disposition}\r\nContent-Type: {content_type}\r\n\r\n".encode() + content + b"\r\n"


def send(server: Server, *parts: bytes, content_type: str = "multipart/form-data; boundary=b"):
    return server.request("POST", "/execute", b"".join(parts) + b"--b--\r\n", {"Content-Type": content_type})


PROGRAM = call(ANSWER_42).document()
BLOB = b"some content"
BLOB_SHA256 = hashlib.sha256(BLOB).hexdigest()


def using(*blobs: bytes) -> bytes:
    program = Program()
    for index, blob in enumerate(blobs):
        program.add("upload", id=f"b{index}", kind="bytes", blob=program.blob(blob))
    program.give("first", {"$ref": "b0"})
    return program.document()


class TestParts:
    def test_a_program_alone(self, server):
        assert send(server, part("program", PROGRAM)).result().value() == 42

    def test_blobs_may_come_before_the_program(self, server):
        blob = part(f"blob:{BLOB_SHA256}", BLOB, "application/octet-stream")
        assert send(server, blob, part("program", using(BLOB))).result().value("first") == BLOB

    def test_quoted_boundaries_other_headers_and_header_case_are_accepted(self, server):
        odd = (
            b'--b\r\ncontent-type: application/json; charset=utf-8\r\nX-Other: 1\r\n'
            b'CONTENT-DISPOSITION: form-data; filename="x.json"; name="program"\r\n\r\n' + PROGRAM + b"\r\n"
        )
        reply = send(server, odd, content_type='Multipart/Form-Data; charset=utf-8; boundary="b"')
        assert reply.result().value() == 42

    @pytest.mark.parametrize(
        "parts",
        [
            pytest.param([], id="no program"),
            pytest.param([part("program", PROGRAM), part("program", PROGRAM)], id="doubled program"),
            pytest.param([part("program", PROGRAM), part("extra", b"{}")], id="another part name"),
            pytest.param([part("program", PROGRAM, "text/plain")], id="wrong type of program"),
            pytest.param([part("program", using(BLOB)), part("blob:abc", BLOB, "application/octet-stream")], id="malformed digest"),
            pytest.param(
                [part("program", using(BLOB)), part(f"blob:{BLOB_SHA256.upper()}", BLOB, "application/octet-stream")],
                id="uppercase digest",
            ),
            pytest.param(
                [part("program", using(BLOB))] + [part(f"blob:{BLOB_SHA256}", BLOB, "application/octet-stream")] * 2,
                id="doubled blob",
            ),
            pytest.param([part("program", using(BLOB)), part(f"blob:{BLOB_SHA256}", BLOB)], id="wrong type of blob"),
            pytest.param(
                [part("program", using(BLOB)), part(f"blob:{BLOB_SHA256}", BLOB + b"!", "application/octet-stream")],
                id="bytes that do not hash to their name",
            ),
            pytest.param(
                [part("program", PROGRAM), part(f"blob:{BLOB_SHA256}", BLOB, "application/octet-stream")],
                id="a blob that no upload references",
            ),
        ],
    )
    def test_refused(self, server, parts):
        assert send(server, *parts).error(400, "parse")

    def test_another_body_type_is_refused(self, server):
        reply = server.request("POST", "/execute", PROGRAM, {"Content-Type": "application/json"})
        assert "multipart/form-data" in reply.error(400, "parse")


class TestRequestId:
    def test_a_canonical_uuid_is_echoed_in_header_and_body(self, server):
        id = str(uuid.uuid4())
        result = server.post(call(ANSWER_42), X_Request_ID=id)
        assert result.headers["x-request-id"] == id == result.result().document["request_id"]

    @pytest.mark.parametrize("id", ["", "7", "{%s}" % uuid.uuid4(), str(uuid.uuid4()).upper(), uuid.uuid4().hex])
    def test_anything_else_is_ignored(self, server, id):
        given = server.post(call(ANSWER_42), X_Request_ID=id).headers["x-request-id"]
        assert given != id and str(uuid.UUID(given)) == given

    def test_echoed_on_errors(self, server):
        id = str(uuid.uuid4())
        for reply in (server.post("{", X_Request_ID=id), server.request("GET", "/nowhere", headers={"X-Request-ID": id})):
            assert reply.headers["x-request-id"] == id == reply.json()["request_id"]

    def test_the_same_program_attaches_without_a_second_run(self, server):
        id = str(uuid.uuid4())
        program = call("import uuid\ndef main():\n    return str(uuid.uuid4())\n")
        first = server.post(program, X_Request_ID=id)
        again = server.post(program, X_Request_ID=id)
        assert first.status == again.status == 200
        assert first.body == again.body

    def test_another_program_under_the_same_id_is_a_conflict(self, server):
        id = str(uuid.uuid4())
        assert server.post(call(ANSWER_42), X_Request_ID=id).status == 200
        server.post(call(ANSWER_42 + "\n"), X_Request_ID=id).error(409, "conflict")

    def test_a_cache_miss_and_a_rejected_body_consume_nothing(self, server):
        id = str(uuid.uuid4())
        content = uuid.uuid4().bytes
        assert server.post(using(content), X_Request_ID=id).json()["status"] == "CACHE_MISS"
        server.post("{", X_Request_ID=id).error(400, "parse")
        assert server.post(call(ANSWER_42), X_Request_ID=id).result().value() == 42


class TestCacheMiss:
    def test_lists_what_is_missing_in_program_order_and_keeps_what_came(self, server):
        contents = [uuid.uuid4().bytes for _ in range(3)]
        digests = [hashlib.sha256(content).hexdigest() for content in contents]
        program = using(*contents)
        reply = server.post(program, [contents[1]])
        document = reply.json()
        assert reply.status == 200 and set(document) == {"status", "request_id", "missing_blobs"}
        assert document["missing_blobs"] == [digests[0], digests[2]]
        assert server.post(program, [contents[2]]).json()["missing_blobs"] == [digests[0]]
        assert server.post(program, [contents[0]]).result().value("first") == contents[0]
        assert server.post(program).result().value("first") == contents[0]


class TestProgramRules:
    """Each violation is a 400 whose message names the instruction and the field."""

    UPLOAD = {"op": "upload", "id": "m", "kind": "module", "source": ANSWER_42}

    @pytest.mark.parametrize(
        "text",
        [
            "", "[]", "{}", '{"instructions": []}', '{"instructions": 1}', "{'instructions': []}", '{"instructions": [{}]}',
            json.dumps({"instructions": [UPLOAD], "more": 1}),
            json.dumps({"instructions": [UPLOAD]}) + "x",
            json.dumps({"instructions": [UPLOAD]}).replace('"op"', '"id": "m", "op"'),
            '{"instructions": [], "instructions": []}',
        ],
    )  # fmt: skip
    def test_malformed_documents(self, server, text):
        assert server.post(text).error(400, "parse")

    @pytest.mark.parametrize("literal", ["NaN", "Infinity", "1e400", "01", "[1,]", '"\\ud800"', "[" * 130 + "]" * 130])
    def test_values_that_are_not_strict_json(self, server, literal):
        program = call(ANSWER_42, "main", ["PLACE"]).document().decode().replace('"PLACE"', literal)
        assert server.post(program).error(400, "parse")

    def test_bytes_that_are_not_utf8(self, server):
        assert server.post(PROGRAM.replace(b"42", b"\xff")).error(400, "parse")

    @pytest.mark.parametrize(
        "change, named",
        [
            ({"op": "download"}, "op"),
            ({"id": ""}, "id"),
            ({"id": 7}, "id"),
            ({"kind": "moduel"}, "kind"),
            ({"language": "rust"}, "language"),
            ({"source": None}, "source"),
            ({"extra": 1}, "extra"),
        ],
    )
    def test_fields_of_an_upload(self, server, change, named):
        message = server.post({"instructions": [{**self.UPLOAD, **change}]}).error(400, "parse")
        assert "instructions[0]" in message and named in message

    @pytest.mark.parametrize("missing", ["op", "id", "kind", "source"])
    def test_missing_fields(self, server, missing):
        upload = {key: value for key, value in self.UPLOAD.items() if key != missing}
        message = server.post({"instructions": [upload]}).error(400, "parse")
        assert "instructions[0]" in message and missing in message

    @pytest.mark.parametrize(
        "instruction, named",
        [
            ({"op": "upload", "id": "m", "kind": "module", "source": ""}, "id"),
            ({"op": "get_function", "id": "f", "module": {"$ref": "later"}, "name": "main"}, "module"),
            ({"op": "get_function", "id": "f", "module": "m", "name": "main"}, "module"),
            ({"op": "get_function", "id": "f", "module": {"$ref": "m"}, "name": ""}, "name"),
            ({"op": "get_function", "id": "f", "module": {"$ref": "m"}, "name": "main", "cpu_only": 1}, "cpu_only"),
            ({"op": "run", "id": "r", "fn": {"$ref": "nothing"}}, "fn"),
            ({"op": "run", "id": "r", "fn": {"$ref": "m"}, "args": {}}, "args"),
            ({"op": "run", "id": "r", "fn": {"$ref": "m"}, "args": [{"$ref": "nothing"}]}, "args"),
            ({"op": "return", "key": "", "value": {"$ref": "m"}}, "key"),
            ({"op": "return", "key": "k", "value": {"$ref": "m"}}, "value"),
            ({"op": "return", "key": "k"}, "value"),
            ({"op": "return", "key": "k", "kind": "file"}, "path"),
            ({"op": "return", "key": "k", "kind": "tree", "path": "x"}, "kind"),
            ({"op": "return", "key": "k", "kind": "file", "path": "../x"}, "path"),
            ({"op": "upload", "id": "t", "kind": "tensor", "blob": "0" * 64, "dtype": "float15", "shape": []}, "dtype"),
            ({"op": "upload", "id": "t", "kind": "tensor", "blob": "0" * 64, "dtype": "int8", "shape": [-1]}, "shape"),
            ({"op": "upload", "id": "t", "kind": "tensor", "blob": "0" * 64, "dtype": "int8", "shape": [2**62, 4]}, "shape"),
            ({"op": "upload", "id": "b", "kind": "bytes", "blob": "0" * 63}, "blob"),
        ],
    )
    def test_rules_of_later_instructions(self, server, instruction, named):
        message = server.post({"instructions": [self.UPLOAD, instruction]}).error(400, "parse")
        assert "instructions[1]" in message and named in message

    def test_return_keys_are_unique(self, server):
        program = call(ANSWER_42)
        program.give("value", {"$ref": "result"})
        assert "key" in server.post(program).error(400, "parse")

    def test_functions_cannot_be_returned(self, server):
        program = Program()
        function = program.add("get_function", id="f", module=program.module(ANSWER_42), name="main")
        program.give("f", function)
        assert "instructions[2]" in server.post(program).error(400, "parse")

    @pytest.mark.parametrize(
        "path", ["", "/etc/passwd", "a/../b", "..", "a\\b", "a\0b", "x" * 256, "/".join(["x" * 200] * 21), ".", "./"]
    )
    def test_paths_of_file_uploads(self, server, path):
        program = Program()
        program.add("upload", id="f", kind="file", blob=program.blob(BLOB), path=path)
        assert "path" in server.post(program).error(400, "parse")

    @pytest.mark.parametrize("first, second", [("a", "a"), ("a", "./a"), ("a/b", "a//b"), ("a", "a/b"), ("a/b/c", "a/b")])
    def test_upload_paths_that_collide(self, server, first, second):
        program = Program()
        for index, path in enumerate((first, second)):
            program.add("upload", id=f"f{index}", kind="file", blob=program.blob(BLOB), path=path)
        assert server.post(program).error(400, "parse")

    def test_a_tensor_of_the_wrong_length(self, server):
        program = Program()
        program.add("upload", id="t", kind="tensor", blob=program.blob(b"12345"), dtype="float32", shape=[1])
        message = server.post(program).error(400, "parse")
        assert "5" in message and "4" in message

    @pytest.mark.parametrize("name", ["main", "1x", "a-b", "a b", "ä"])
    def test_names_of_cuda_functions(self, server, name):
        program = Program()
        module = program.add("upload", id="m", kind="module", source="", language="cuda")
        program.add("get_function", id="f", module=module, name=name)
        assert "name" in server.post(program).error(400, "parse")


class TestOptions:
    @pytest.mark.parametrize(
        "option, values",
        [
            ("timeout_seconds", [0, -1, "1", True, None]),
            ("output_limit_bytes", [-1, 1.5, "1", True]),
            ("gpu_count", [0, 2, 9, 1.0, "1"]),
            ("priority", [-101, 101, 0.5]),
            ("labels", [[], {"a": 1}, {"a": "x" * 10000}]),
            ("max_attempts", [0, 11, 1.5]),
            ("unknown", [1]),
        ],
    )
    def test_refused(self, server, option, values):
        for value in values:
            assert option in server.post(call(ANSWER_42, **{option: value})).error(400, "parse")

    def test_accepted_and_clamped(self, server):
        options = {
            "timeout_seconds": 1e9, "output_limit_bytes": 10**15, "gpu_count": 1, "priority": -100,
            "labels": {"experiment": "softmax"}, "max_attempts": 10,
        }  # fmt: skip
        assert server.run(ANSWER_42, **options).value() == 42


class TestPathsAndMethods:
    @pytest.mark.parametrize("path", ["/nowhere", "/execute/", "/health/", "/executes", "//execute", "/%00"])
    def test_unknown_paths(self, server, path):
        assert server.request("GET", path).error(404, "not_found")

    @pytest.mark.parametrize("method, path, allow", [("GET", "/execute", {"POST"}), ("PUT", "/execute", {"POST"}), ("POST", "/health", {"GET", "HEAD"})])
    def test_wrong_methods(self, server, method, path, allow):
        reply = server.request(method, path)
        assert reply.error(405, "method_not_allowed")
        assert set(reply.headers["allow"].replace(" ", "").split(",")) <= allow | {"HEAD"} and reply.headers["allow"]


class TestBrowsers:
    def test_a_foreign_origin_is_refused(self, server):
        assert server.request("GET", "/health", headers={"Origin": "http://evil.example"}).error(403, "forbidden")
        assert server.post(call(ANSWER_42), Origin="null").error(403, "forbidden")

    def test_its_own_origin_is_not(self, server):
        origin = f"http://127.0.0.1:{server.port}"
        assert server.request("GET", "/health", headers={"Origin": origin}).status == 200

    @pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "10.0.0.1:{port}"])
    def test_a_foreign_host_is_refused_on_loopback(self, server, host):
        host = host.format(port=server.port)
        assert server.request("GET", "/health", headers={"Host": host}).error(403, "forbidden")

    @pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:{port}", "LOCALHOST", "[::1]:{port}", "127.3.2.1"])
    def test_loopback_hosts_are_accepted(self, server, host):
        assert server.request("GET", "/health", headers={"Host": host.format(port=server.port)}).status == 200


class TestSizes:
    def test_too_large_by_content_length_is_refused_before_the_body(self, server):
        connection = server.connect()
        connection.putrequest("POST", "/execute")
        connection.putheader("Content-Type", "multipart/form-data; boundary=b")
        connection.putheader("Content-Length", str(300 * 2**20))
        connection.endheaders()
        response = connection.getresponse()
        document = json.loads(response.read())
        assert (response.status, document["error"]["kind"]) == (413, "request_too_large")
        connection.close()

    def test_chunked_bodies_work(self, server):
        content_type, body = multipart(PROGRAM, [])
        connection = server.connect()
        pieces = (body[i : i + 7] for i in range(0, len(body), 7))
        connection.request("POST", "/execute", body=pieces, headers={"Content-Type": content_type}, encode_chunked=True)
        response = connection.getresponse()
        assert response.status == 200 and json.loads(response.read())["status"] == "COMPLETED"
        connection.close()
