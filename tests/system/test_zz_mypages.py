import os
from tests.system import test_documentation as d
class MyPages(d.DocumentTestCase):
    def test_pages(self):
        total=0
        for n in os.environ["PAGES"].split():
            r=self.reader(); total+=len(r.follow(d.textOf(d.MANUAL/n)))
        print("ran", total)
